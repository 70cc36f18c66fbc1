-- Removes every message and keeps the queue with its settings and totals.
-- KEYS: due, messages. ARGV: none.
-- Returns how many messages were removed; -1 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local kept = {}
local names = {'vt', 'delay', 'maxsize', 'created', 'modified', 'totalsent', 'totalrecv'}
local values = call('HMGET', messages, unpack(names))
if not (values[1] and values[2] and values[3]) then return -1 end
for i, name in ipairs(names) do
  if values[i] then
    kept[#kept + 1] = name
    kept[#kept + 1] = values[i]
  end
end
local count = call('ZCARD', due)
-- Dropped whole and begun anew: removing field by field would hold the server for as long as the queue is.
call('UNLINK', due, messages)
call('HSET', messages, unpack(kept))
return count
