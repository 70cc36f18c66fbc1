-- Stores several messages, all or none, in the order given; one realtime word for all of them.
-- KEYS: due, messages. ARGV: delay in s ('' = the queue's), channel ('' = realtime is off), then per message 22 random
-- characters, size in UTF-16 units, body.
-- Returns the ids; 0 = no such queue, 1 = one is too long, 2 = a setting of the queue is out of the protocol's range.
local due, messages = KEYS[1], KEYS[2]
local delay, channel = ARGV[1], ARGV[2]
local call, sub = redis.call, string.sub
local DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalsent', 'totalrecv')
if not (q[1] and q[2] and q[3]) then return 0 end
local maxsize = tonumber(q[3]) or 0
if maxsize ~= -1 then
  for i = 4, #ARGV, 3 do
    if tonumber(ARGV[i]) > maxsize then return 1 end
  end
end
if delay == '' then
  delay = q[2]
  if delay ~= '0' then
    local n, vt = tonumber(delay), tonumber(q[1])
    if not (n and vt) or n < 0 or n > 9999999 or vt > 9999999 then return 2 end
    if q[5] == '0' and vt >= 1000 and vt % 1000 == 0 then return 2 end
    delay = math.floor(n)
  end
end
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local score = (now - now % 1000) / 1000 + delay * 1000
local ids, scores, bodies = {}, {}, {}
for i = 3, #ARGV, 3 do
  -- A microsecond apart: equal scores are in the order of the ids, and so keep the order given.
  local id, rest = ARGV[i], now + #ids
  while rest > 0 do
    local digit = rest % 36
    id = sub(DIGITS, digit + 1, digit + 1) .. id
    rest = (rest - digit) / 36
  end
  ids[#ids + 1] = id
  scores[#scores + 1] = score
  scores[#scores + 1] = id
  bodies[#bodies + 1] = id
  bodies[#bodies + 1] = ARGV[i + 2]
end
call('ZADD', due, unpack(scores))
call('HSET', messages, 'totalsent', (tonumber(q[4]) or 0) + #ids, unpack(bodies))
if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end
return ids
