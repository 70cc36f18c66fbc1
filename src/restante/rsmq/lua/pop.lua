-- popMessage: the first message that is due, removed.
-- KEYS: due, messages. ARGV: none.
-- Returns {id, body, count, first received}; {} = none is due; 0 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local call = redis.call
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalrecv')
if not (q[1] and q[2] and q[3]) then return 0 end
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local id = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1)[1]
if not id then return {} end
local counted, first = id .. ':rc', id .. ':fr'
local m = call('HMGET', messages, id, counted, first)
call('ZREM', due, id)
call('HDEL', messages, id, counted, first)
call('HSET', messages, 'totalrecv', (tonumber(q[4]) or 0) + 1)
return {id, m[1], (tonumber(m[2]) or 0) + 1, m[3] or now}
