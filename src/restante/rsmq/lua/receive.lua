-- receiveMessage: the first message that is due, hidden from now on for vt seconds.
-- KEYS: due, messages. ARGV: vt in s ('' = the queue's), '1' to be told of the next score when none is due.
-- Returns {id, body, count, first received}; {} = none is due, or {now, next score or false} where asked for;
-- 0 = no such queue, 2 = the queue's vt is out of the protocol's range, or was written in milliseconds.
local due, messages = KEYS[1], KEYS[2]
local vt = ARGV[1]
local call = redis.call
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalrecv')
if not (q[1] and q[2] and q[3]) then return 0 end
if vt == '' then
  vt = tonumber(q[1])
  if not vt or vt < 0 or vt > 9999999 then return 2 end
  -- A received total of 0 is what only clients that count in milliseconds write.
  if q[4] == '0' and vt >= 1000 and vt % 1000 == 0 then return 2 end
  vt = math.floor(vt)
end
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local id = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1)[1]
if not id then
  if ARGV[2] == '1' then return {now, call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or false} end
  return {}
end
local counted, first = id .. ':rc', id .. ':fr'
local m = call('HMGET', messages, id, counted, first)
local count = (tonumber(m[2]) or 0) + 1
call('ZADD', due, now + vt * 1000, id)
-- By one write what the other clients do by two increments and a set; nobody can see the difference.
if m[3] then
  call('HSET', messages, 'totalrecv', (tonumber(q[4]) or 0) + 1, counted, count)
else
  call('HSET', messages, 'totalrecv', (tonumber(q[4]) or 0) + 1, counted, count, first, now)
end
return {id, m[1], count, m[3] or now}
