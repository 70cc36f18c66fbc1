-- receiveMessage: the first message that is due, hidden from now on for vt seconds.
-- KEYS: due, messages. ARGV: vt in s ('' = the queue's), '1' to be told of the next score when none is due.
-- Returns {id, body, count, first received}; {} = none is due, or {now, next score or false} where asked for;
-- 0 = no such queue, 2 = the queue's vt is out of the protocol's range, or was written in milliseconds.
local due, messages = KEYS[1], KEYS[2]
local vt, with_next = ARGV[1], ARGV[2] == '1'
local queue_vt, _, _, totalrecv = read_queue(messages, 'totalrecv')
if not queue_vt then return 0 end
if vt == '' then vt = seconds_of(queue_vt, queue_vt, totalrecv) end
if not vt then return 2 end
local now = clock()
local id = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1)[1]
if not id then
  if with_next then return {now, call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or false} end
  return {}
end
local counted, first = id .. ':rc', id .. ':fr'
local m = call('HMGET', messages, id, counted, first)
local count = (tonumber(m[2]) or 0) + 1
call('ZADD', due, now + vt * 1000, id)
-- By one write what the other clients do by two increments and a set; nobody can see the difference.
if m[3] then
  call('HSET', messages, 'totalrecv', (tonumber(totalrecv) or 0) + 1, counted, count)
else
  call('HSET', messages, 'totalrecv', (tonumber(totalrecv) or 0) + 1, counted, count, first, now)
end
return {id, m[1], count, m[3] or now}
