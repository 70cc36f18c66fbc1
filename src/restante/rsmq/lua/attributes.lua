-- getQueueAttributes, and setQueueAttributes where there are ARGV.
-- KEYS: due, messages. ARGV: names and values of attributes to set.
-- Returns {vt, delay, maxsize, totalrecv, totalsent, created, modified, messages, hidden}; 0 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local now = clock()
local vt, _, _, totalrecv = read_queue(messages, 'totalrecv')
if not vt then return 0 end
if #ARGV > 0 then
  call('HSET', messages, 'modified', math.floor(now / 1000), unpack(ARGV))
  -- Marks a queue of a client that counts in milliseconds; once its vt is set here, it is in seconds.
  if totalrecv == '0' and ARGV[1] == 'vt' then call('HDEL', messages, 'totalrecv') end
end
local answer = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalrecv', 'totalsent', 'created', 'modified')
answer[8] = call('ZCARD', due)
answer[9] = call('ZCOUNT', due, string.format('(%.0f', now), '+inf')
return answer
