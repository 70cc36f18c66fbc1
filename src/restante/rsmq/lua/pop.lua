-- popMessage: the first message that is due, removed.
-- KEYS: due, messages. ARGV: none.
-- Returns {id, body, count, first received}; {} = none is due; 0 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local vt, _, _, totalrecv = read_queue(messages, 'totalrecv')
if not vt then return 0 end
local now = clock()
local id = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1)[1]
if not id then return {} end
local counted, first = id .. ':rc', id .. ':fr'
local m = call('HMGET', messages, id, counted, first)
call('ZREM', due, id)
call('HDEL', messages, id, counted, first)
call('HSET', messages, 'totalrecv', (tonumber(totalrecv) or 0) + 1)
return {id, m[1], (tonumber(m[2]) or 0) + 1, m[3] or now}
