-- Takes a message out of an RSMQ queue into a native one by one step, unless somebody has received it meanwhile.
-- The core's send.lua precedes this text as the function `send`.
-- KEYS: those of send.lua, then due, messages of the RSMQ queue
-- ARGV: those of send.lua for one message, then how often it had been received when the caller read it
-- Returns what send.lua returns, or "gone" if the message is not there as it was read.
-- Journal: sent
local due, messages = KEYS[#KEYS - 1], KEYS[#KEYS]
local received, id = table.remove(ARGV), ARGV[2]
local found = call('HMGET', messages, id, id .. ':rc')
if not found[1] or (found[2] or '0') ~= received or not call('ZSCORE', due, id) then return 'gone' end
local answer = send()
if type(answer) == 'table' and answer.err then return answer end
call('ZREM', due, id)
call('HDEL', messages, id, id .. ':rc', id .. ':fr')
return answer
