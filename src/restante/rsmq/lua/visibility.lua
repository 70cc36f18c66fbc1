-- changeMessageVisibility: the message can be received again vt seconds from now.
-- KEYS: due, messages. ARGV: id, vt in s.
-- Returns 1, or 0 where there is no such message; -1 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local id, vt = ARGV[1], ARGV[2]
local call = redis.call
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize')
if not (q[1] and q[2] and q[3]) then return -1 end
if not call('ZSCORE', due, id) then return 0 end
local t = call('TIME')
call('ZADD', due, t[1] * 1000 + math.floor(t[2] / 1000) + vt * 1000, id)
return 1
