-- sendMessage: stores one message, unless the queue is missing or the message too long for it.
-- KEYS: due, messages. ARGV: 22 random characters, size in UTF-16 units, delay in s ('' = the queue's), channel ('' =
-- realtime is off), body.
-- Returns the id; 0 = no such queue, 1 = too long, 2 = a setting of the queue is out of the protocol's range.
local due, messages = KEYS[1], KEYS[2]
local tail, size, delay, channel, body = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local call, sub = redis.call, string.sub
local DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize', 'totalsent', 'totalrecv')
if not (q[1] and q[2] and q[3]) then return 0 end
local maxsize = tonumber(q[3]) or 0
if maxsize ~= -1 and tonumber(size) > maxsize then return 1 end
if delay == '' then
  delay = q[2]
  if delay ~= '0' then
    local n, vt = tonumber(delay), tonumber(q[1])
    if not (n and vt) or n < 0 or n > 9999999 or vt > 9999999 then return 2 end
    -- A received total of 0 is what only clients that count in milliseconds write.
    if q[5] == '0' and vt >= 1000 and vt % 1000 == 0 then return 2 end
    delay = math.floor(n)
  end
end
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local id, rest = tail, now
while rest > 0 do
  local digit = rest % 36
  id = sub(DIGITS, digit + 1, digit + 1) .. id
  rest = (rest - digit) / 36
end
call('ZADD', due, (now - now % 1000) / 1000 + delay * 1000, id)
call('HSET', messages, id, body, 'totalsent', (tonumber(q[4]) or 0) + 1)
if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end
return id
