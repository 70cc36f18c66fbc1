-- Removes up to a bounded number of messages of one state, with one journal entry that counts them.
-- KEYS: queue journal messages deliveries history zset-of-the-state unique
-- ARGV: operator, state, limit
-- Returns how many were removed.
-- Journal: purged
local m = moves()
local messages, deliveries, history, zset, unique = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local operator, state, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local ids = call('ZRANGE', zset, 0, limit - 1)
if #ids == 0 then return 0 end
local now, bodies = clock(), {}
if call('EXISTS', unique) == 1 then bodies = call('HMGET', messages, unpack(ids)) end
write(m.advance('purged', 1, #ids),
  { m.line('purged', 'gone', now, '', now .. '\t\t0\t0', 0, operator, '', '', state .. ':' .. #ids) }, true)
for i = 1, #ids do
  if bodies[i] then
    local _, limits = m.read(bodies[i])
    m.hold_unique(unique, limits, ids[i], 'g')
  end
end
call('ZREMRANGEBYRANK', zset, 0, #ids - 1)
m.forget(messages, deliveries, history, ids)
return #ids
