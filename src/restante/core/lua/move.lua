-- Moves messages that are not leased to another queue: due times, headers and errors are kept, attempts reset to 0.
-- KEYS: queue journal messages deliveries history ready scheduled retrying dead leased unique outbox of the source,
--       then queue journal messages deliveries history ready scheduled unique marker of the target
-- ARGV: operator, source name, target name, then message ids
-- Returns per message its state in the source, "leased" if it is leased, "exists" if the target has it, "" if none.
-- Journal: deleted in the source, sent in the target
local m = require('moves')
local messages, deliveries, history, ready, scheduled = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local retrying, dead, leased, unique, outbox = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local to = { queue = KEYS[13], journal = KEYS[14], messages = KEYS[15], deliveries = KEYS[16], history = KEYS[17],
  ready = KEYS[18], scheduled = KEYS[19], unique = KEYS[20], marker = KEYS[21] }
local operator, source, target = ARGV[1], ARGV[2], ARGV[3]
local places = { ready = ready, scheduled = scheduled, retrying = retrying, dead = dead }
local from = { queue = queue, journal = journal }
local now, reply = clock(), {}
local function on(side)
  queue, journal = side.queue, side.journal
  local set = call('HMGET', queue, 'journal', 'journal_skip')
  m.open(set[1], set[2])
end
for i = 4, #ARGV do
  local id, state, due = ARGV[i], '', nil
  local body = call('HGET', messages, id)
  for name, zset in pairs(places) do
    local score = body and call('ZSCORE', zset, id)
    if score then state, due = name, (name == 'scheduled' or name == 'retrying') and score or nil end
  end
  if state == '' and body and call('ZSCORE', leased, id) then state = 'leased' end
  if places[state] and call('HEXISTS', to.messages, id) == 1 then state = 'exists' end
  if places[state] then
    local facts, limits = m.read(body)
    local lines = call('HGET', history, id)
    m.hold_unique(unique, limits, id, 'g')
    on(to)
    call('HSETNX', queue, 'incarnation', format('%d', now))
    local base = m.advance('sent', 1)
    local sequence = format('%d', base + 1)
    local fresh = sequence .. string.sub(body, string.find(body, '\n', 1, true), -1)
    write(base, { m.line('sent', due and 'scheduled' or 'ready', now, id, facts, 0, operator, due or '', '',
      'moved from ' .. source) }, false, { id, fresh })
    call('HSET', to.messages, id, fresh)
    if lines then call('HSET', to.history, id, lines) end
    m.hold_unique(to.unique, limits, id, due and 's' or 'r')
    if due then
      call('ZADD', to.scheduled, due, id)
      m.wake_by(to.marker, call('HGET', queue, 'due'), tonumber(due), now)
    else
      call('ZADD', to.ready, m.position(facts, sequence), id)
      call('ZADD', to.marker, '0', '0')
    end
    on(from)
    write(m.advance('deleted', 1),
      { m.line('deleted', 'gone', now, id, facts, 0, operator, '', '', state .. ', moved to ' .. target) }, true)
    m.note(outbox, limits, id, 'moved', target, now)
    call('ZREM', places[state], id)
    m.forget(messages, deliveries, history, { id })
  end
  reply[i - 3] = state
end
return reply
