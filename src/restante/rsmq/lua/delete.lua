-- deleteMessage, for one or many: removes messages, received or not, hidden or not.
-- KEYS: due, messages. ARGV: ids.
-- Returns how many were there. A missing queue is none, as in the protocol.
local due, messages = KEYS[1], KEYS[2]
local count = 0
for _, id in ipairs(ARGV) do
  local known = call('ZREM', due, id)
  local stored = call('HDEL', messages, id, id .. ':rc', id .. ':fr')
  if known == 1 and stored > 0 then count = count + 1 end
end
return count
