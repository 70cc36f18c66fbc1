-- Removes up to `limit` messages of one state, with one journal entry of a line each.
-- KEYS: queue journal messages deliveries history zset-of-the-state unique outbox
-- ARGV: operator, state, limit
-- Returns how many were removed.
-- Journal: purged
local m = require('moves')
local messages, deliveries, history, zset, unique = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local outbox, waited = KEYS[8], ARGV[2] ~= 'dead' and ARGV[2] ~= 'done'
local operator, state, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local ids = call('ZRANGE', zset, 0, limit - 1)
if #ids == 0 then return 0 end
local now, lines, batched = clock(), {}, {}
local before = call('HMGET', deliveries, unpack(ids))
for i = 1, #ids do
  -- One by one: all payloads together may be more than the server can hold twice.
  local facts, limits = m.read(call('HGET', messages, ids[i]) or '')
  local attempts = before[i] and m.parse(before[i]).attempts or 0
  lines[i] = m.line('purged', 'gone', now, ids[i], facts, attempts, operator, '', '', state)
  m.hold_unique(unique, limits, ids[i], 'g')
  if waited and m.batch_of(limits) then batched[ids[i]] = limits end
end
write(m.advance('purged', #ids), lines, true)
for id, limits in pairs(batched) do m.note(outbox, limits, id, 'purged', '', now) end
call('ZREMRANGEBYRANK', zset, 0, #ids - 1)
m.forget(messages, deliveries, history, ids)
return #ids
