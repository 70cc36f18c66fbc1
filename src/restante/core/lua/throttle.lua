-- Limits the messages per second of all senders that share a name: tells each of them how long to wait.
-- KEYS: queue journal
-- ARGV: name, microseconds per message, number of messages, microseconds of a pause that may be made up for
-- Returns the microseconds to wait before they are sent: until the time of the last of them.
-- Journal: none
local field = 'pace:' .. ARGV[1]
local each, count, slack = whole(ARGV[2], 0, 9e15), whole(ARGV[3], 0, 1e6), whole(ARGV[4], 0, 9e15)
if not (each and count and slack) then return refuse('INVALID', 'pace takes whole numbers') end
local now = clock() * 1000 -- whole milliseconds suffice: the slack is longer
local free = math.max(tonumber(call('HGET', queue, field)) or now, now - slack)
free = free + each * count
call('HSET', queue, field, format('%d', free))
return math.max(0, free - now)
