-- What the next receives would get, without receiving it.
-- KEYS: due, messages. ARGV: count.
-- Returns {id, body, count, first received} flat, per message; 0 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local call = redis.call
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize')
if not (q[1] and q[2] and q[3]) then return 0 end
local t = call('TIME')
local ids = call('ZRANGEBYSCORE', due, '-inf', t[1] * 1000 + math.floor(t[2] / 1000), 'LIMIT', 0, ARGV[1])
local answer = {}
for i, id in ipairs(ids) do
  local m = call('HMGET', messages, id, id .. ':rc', id .. ':fr')
  answer[4 * i - 3], answer[4 * i - 2], answer[4 * i - 1], answer[4 * i] = id, m[1], m[2] or 0, m[3] or 0
end
return answer
