-- receiveMessage, but what was received max times already goes to another queue instead, its counts with it.
-- KEYS: due, messages, dead's due, dead's messages. ARGV: vt in s ('' = the queue's), max, the most to move per call.
-- Returns {id, body, count, first received}; {} = none is due; {1} = moved as many as it may, ask again; 0 = no such
-- queue, 2 = its vt is out of the protocol's range or was written in milliseconds, 3 = no such queue for the dead.
local due, messages, dead_due, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local vt, max, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local queue_vt, _, _, totalrecv = read_queue(messages, 'totalrecv')
if not queue_vt then return 0 end
if not read_queue(dead) then return 3 end
if vt == '' then vt = seconds_of(queue_vt, queue_vt, totalrecv) end
if not vt then return 2 end
local now = clock()
for _ = 1, most do
  local id = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1)[1]
  if not id then return {} end
  local counted, first = id .. ':rc', id .. ':fr'
  local m = call('HMGET', messages, id, counted, first)
  local count = tonumber(m[2]) or 0
  if count < max or not m[1] then
    call('ZADD', due, now + vt * 1000, id)
    call('HSET', messages, 'totalrecv', (tonumber(totalrecv) or 0) + 1, counted, count + 1, first, m[3] or now)
    return {id, m[1], count + 1, m[3] or now}
  end
  call('HSET', dead, id, m[1], counted, m[2], first, m[3] or now)
  call('ZADD', dead_due, now, id)
  call('HINCRBY', dead, 'totalsent', 1)
  call('ZREM', due, id)
  call('HDEL', messages, id, counted, first)
end
return {1}
