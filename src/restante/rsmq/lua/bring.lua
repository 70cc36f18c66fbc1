-- Puts a message of a native queue into an RSMQ queue, unless it was put there before.
-- KEYS: due, messages of the RSMQ queue, marker
-- ARGV: id, message, its length in UTF-16 units, seconds the marker is kept, channel to publish on ("" for none)
-- Returns "missing" where there is no such queue, "long" where it takes no message of this length, "known" if it was
--         put there before, else "brought".
local due, messages, marker = KEYS[1], KEYS[2], KEYS[3]
local id, message, length, kept, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local vt, delay, maxsize = read_queue(messages)
if not vt then return 'missing' end
if call('EXISTS', marker) == 1 then return 'known' end
local most = tonumber(maxsize)
if most >= 0 and length > most then return 'long' end
local now = clock()
call('SET', marker, '1', 'EX', kept)
call('ZADD', due, string.format('%d', now + tonumber(delay) * 1000), id)
call('HSET', messages, id, message)
call('HINCRBY', messages, 'totalsent', 1)
if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end
return 'brought'
