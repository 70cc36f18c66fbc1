-- Shared by every script of the room: the server's clock and a queue's settings. Each function defined here costs at
-- every call, so what only sends need is in ids.lua.
-- A script checks first, then adds to the new place, then removes from the old: Lua never rolls back.
local call = redis.call

-- Returns the time in milliseconds, and in microseconds for ids.
local function clock()
  local t = redis.call('TIME')
  local micros = t[1] * 1000000 + t[2]
  return (micros - micros % 1000) / 1000, micros
end

-- Returns vt, delay and maxsize as they are stored, then up to two given fields; nil if the queue lacks a setting,
-- because then it does not exist.
local function read_queue(messages, ...)
  local q = redis.call('HMGET', messages, 'vt', 'delay', 'maxsize', ...)
  if q[1] and q[2] and q[3] then return q[1], q[2], q[3], q[4], q[5] end
end

-- Returns a queue's vt or delay in whole seconds, or nil if one of the two is out of the protocol's range or was
-- written in milliseconds: only clients that count in them write a received total of 0.
local function seconds_of(setting, vt, totalrecv)
  local LONGEST = 9999999 -- seconds
  local seconds = tonumber(setting)
  vt = tonumber(vt)
  if not (seconds and vt) or seconds < 0 or seconds > LONGEST or vt > LONGEST then return nil end
  if totalrecv == '0' and vt >= 1000 and vt % 1000 == 0 then return nil end
  return math.floor(seconds)
end
