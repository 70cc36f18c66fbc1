-- Puts a message of a native queue into an RSMQ queue, unless it was put there before.
-- KEYS: due, messages of the RSMQ queue, marker
-- ARGV: id, message, its length in UTF-16 units, seconds the marker is kept, channel to publish on ("" for none)
-- Returns "missing" where there is no such queue, "long" where it takes no message of this length, "known" if it was
--         put there before, else "brought".
local due, messages, marker = KEYS[1], KEYS[2], KEYS[3]
local id, message, length, kept, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local set = redis.call('HMGET', messages, 'vt', 'delay', 'maxsize')
if not (set[1] and set[2] and set[3]) then return 'missing' end
if redis.call('EXISTS', marker) == 1 then return 'known' end
local most = tonumber(set[3])
if most >= 0 and length > most then return 'long' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', marker, '1', 'EX', kept)
redis.call('ZADD', due, string.format('%d', now + tonumber(set[2]) * 1000), id)
redis.call('HSET', messages, id, message)
redis.call('HINCRBY', messages, 'totalsent', 1)
if channel ~= '' then redis.call('PUBLISH', channel, redis.call('ZCARD', due)) end
return 'brought'
