-- What the next receives would get, without receiving it.
-- KEYS: due, messages. ARGV: count.
-- Returns {id, body, count, first received} flat, per message; 0 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local most = ARGV[1]
if not read_queue(messages) then return 0 end
local ids = call('ZRANGEBYSCORE', due, '-inf', clock(), 'LIMIT', 0, most)
local answer = {}
for i, id in ipairs(ids) do
  local m = call('HMGET', messages, id, id .. ':rc', id .. ':fr')
  answer[4 * i - 3], answer[4 * i - 2], answer[4 * i - 1], answer[4 * i] = id, m[1], m[2] or 0, m[3] or 0
end
return answer
