-- Stores several messages, all or none, in the order given; with one announcement for all of them.
-- KEYS: due, messages. ARGV: delay in s ('' = the queue's), channel ('' = realtime is off), then per message 22 random
-- characters, size in UTF-16 units, body.
-- Returns the ids; 0 = no such queue, 1 = one is too long, 2 = a setting of the queue is out of the protocol's range.
local due, messages = KEYS[1], KEYS[2]
local delay, channel = ARGV[1], ARGV[2]
local vt, queue_delay, maxsize, totalsent, totalrecv = read_queue(messages, 'totalsent', 'totalrecv')
if not vt then return 0 end
maxsize = tonumber(maxsize) or 0
if maxsize ~= -1 then
  for i = 4, #ARGV, 3 do
    if tonumber(ARGV[i]) > maxsize then return 1 end
  end
end
if delay == '' then delay = queue_delay == '0' and 0 or seconds_of(queue_delay, vt, totalrecv) end
if not delay then return 2 end
local now, micros = clock()
local score = now + delay * 1000
local ids, scores, bodies = {}, {}, {}
for i = 3, #ARGV, 3 do
  -- A microsecond apart: equal scores are in the order of the ids, and so keep the order given.
  local id = id_of(micros + #ids, ARGV[i])
  ids[#ids + 1] = id
  scores[#scores + 1] = score
  scores[#scores + 1] = id
  bodies[#bodies + 1] = id
  bodies[#bodies + 1] = ARGV[i + 2]
end
call('ZADD', due, unpack(scores))
call('HSET', messages, 'totalsent', (tonumber(totalsent) or 0) + #ids, unpack(bodies))
if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end
return ids
