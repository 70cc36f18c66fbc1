-- Moves dead messages back to ready, resets attempts to 0, keeps earlier errors, and stores the task's cursor too.
-- KEYS: queue journal messages deliveries ready dead unique marker tasks outbox
-- ARGV: operator, task id ("" for none), task record (JSON), then message ids
-- Returns per message 1 if replayed, 0 if it was not dead.
-- Journal: replayed
local m = require('moves')
local messages, deliveries, ready, dead = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local unique, marker, tasks, outbox = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local operator, task, progress = ARGV[1], ARGV[2], ARGV[3]
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local now, reply, moved = clock(), {}, 0
for i = 4, #ARGV do
  local id = ARGV[i]
  local body = call('ZSCORE', dead, id) and call('HGET', messages, id)
  reply[i - 3] = body and 1 or 0
  if body then
    local facts, limits = m.read(body)
    local before = call('HGET', deliveries, id)
    local base = m.advance('replayed', 1)
    local d = before and m.parse(before) or { received = '', consumer = '', replays = 0 }
    d.token, d.expires, d.attempts, d.sequence, d.replays = '', 0, 0, format('%d', base + 1), d.replays + 1
    d.facts, d.limits = facts, limits
    write(base, { m.line('replayed', 'ready', now, id, d.facts, 0, operator, '', '', task) }, false)
    call('HSET', deliveries, id, m.pack(d))
    call('ZADD', ready, m.position(facts, d.sequence), id)
    call('ZREM', dead, id)
    m.hold_unique(unique, d.limits, id, 'r')
    m.note(outbox, limits, id, 'replayed', '', now)
    moved = moved + 1
  end
end
if task ~= '' then call('HSET', tasks, task, progress) end
if moved > 0 then call('ZADD', marker, '0', '0') end
return reply
