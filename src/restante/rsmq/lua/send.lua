-- sendMessage: stores one message, unless the queue is missing or the message too long for it.
-- KEYS: due, messages. ARGV: 22 random characters, size in UTF-16 units, delay in s ('' = the queue's), channel ('' =
-- realtime is off), body.
-- Returns the id; 0 = no such queue, 1 = too long, 2 = a setting of the queue is out of the protocol's range.
local due, messages = KEYS[1], KEYS[2]
local tail, size, delay, channel, body = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local vt, queue_delay, maxsize, totalsent, totalrecv = read_queue(messages, 'totalsent', 'totalrecv')
if not vt then return 0 end
maxsize = tonumber(maxsize) or 0
if maxsize ~= -1 and tonumber(size) > maxsize then return 1 end
if delay == '' then delay = queue_delay == '0' and 0 or seconds_of(queue_delay, vt, totalrecv) end
if not delay then return 2 end
local now, micros = clock()
local id = id_of(micros, tail)
call('ZADD', due, now + delay * 1000, id)
call('HSET', messages, id, body, 'totalsent', (tonumber(totalsent) or 0) + 1)
if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end
return id
