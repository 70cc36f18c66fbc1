-- getQueueAttributes, and setQueueAttributes where there are ARGV.
-- KEYS: due, messages. ARGV: names and values of attributes to set.
-- Returns {vt, delay, maxsize, totalrecv, totalsent, created, modified, messages, hidden}; 0 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local call = redis.call
local t = call('TIME')
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalrecv')
if not (q[1] and q[2] and q[3]) then return 0 end
if #ARGV > 0 then
  call('HSET', messages, 'modified', t[1], unpack(ARGV))
  -- What tells a queue of a client that counts in milliseconds; its vt is in seconds from here on, where it was set.
  if q[4] == '0' and ARGV[1] == 'vt' then call('HDEL', messages, 'totalrecv') end
end
local answer = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalrecv', 'totalsent', 'created', 'modified')
answer[8] = call('ZCARD', due)
answer[9] = call('ZCOUNT', due, string.format('(%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), '+inf')
return answer
