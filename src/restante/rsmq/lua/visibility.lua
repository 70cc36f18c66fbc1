-- changeMessageVisibility: the message can be received again vt seconds from now.
-- KEYS: due, messages. ARGV: id, vt in s.
-- Returns 1, or 0 where there is no such message; -1 = no such queue.
local due, messages = KEYS[1], KEYS[2]
local id, vt = ARGV[1], ARGV[2]
if not read_queue(messages) then return -1 end
if not call('ZSCORE', due, id) then return 0 end
call('ZADD', due, clock() + vt * 1000, id)
return 1
