-- Answers a call: puts an answer where its caller looks for it, and wakes the caller.
-- KEYS: answers marker
-- ARGV: answer, ms it is kept, most answers that count
-- Returns 1, or 0 where the call has its answers already.
local answers, marker, answer, span, most = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
if most > 0 and call('LLEN', answers) >= most then return 0 end
call('RPUSH', answers, answer)
call('PEXPIRE', answers, span)
call('ZADD', marker, '0', '0')
call('PEXPIRE', marker, span)
return 1
