-- Moves messages to another queue, where they are as if never received; their ids, bodies and times stay.
-- KEYS: due, messages, target's due, target's messages. ARGV: the most to move of what is due, or 0; ids.
-- Returns how many were moved; -1 = no such queue, -2 = no such target.
local due, messages, target_due, target = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
for i, key in ipairs({messages, target}) do
  if not read_queue(key) then return -i end
end
local ids, most = ARGV, table.remove(ARGV, 1)
if most ~= '0' then
  local now = clock()
  ids = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)
end
local count = 0
for _, id in ipairs(ids) do
  local score, body = call('ZSCORE', due, id), call('HGET', messages, id)
  if score and body then
    call('HSET', target, id, body)
    call('ZADD', target_due, score, id)
    call('ZREM', due, id)
    call('HDEL', messages, id, id .. ':rc', id .. ':fr')
    count = count + 1
  end
end
if count > 0 then call('HINCRBY', target, 'totalsent', count) end
return count
