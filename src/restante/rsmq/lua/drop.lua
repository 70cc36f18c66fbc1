-- deleteQueue: the queue and every message in it.
-- KEYS: names, due, messages. ARGV: queue.
-- Returns 1; 0 = there was none.
local names, due, messages = KEYS[1], KEYS[2], KEYS[3]
local queue = ARGV[1]
local gone = call('UNLINK', messages, due)
call('SREM', names, queue)
return gone > 0 and 1 or 0
