-- Fires schedules: stores the messages of ticks that are due, as a send does, and with them each schedule's next tick.
-- A schedule that has changed since the caller read it is left alone, so that of many firers one fires each tick.
-- KEYS: queue journal messages ready marker scheduled unique acked acked_before leased retrying dead schedules ticks
-- ARGV: most schedules to return, a number that chooses among more, ms ahead to look, then per schedule: name, its head
--       as read, its head after the tick, its head if the tick is passed over because the last message is not settled
--       ("" to fire all the same), due ms of the next tick ("" for none), number of messages, then per message: id, due
--       ms, priority, stored form without sequence and sent_at
-- Returns now, due ms of the nearest tick ("" if there is none), a list with "fired", "passed" or "changed" per
--         schedule, then name and record per schedule that is due, or if none is, that is due soon.
-- Journal: sent
local messages, ready, marker, scheduled, unique, acked = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local acked_before, leased, retrying, dead, schedules = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local ticks, most, chance, ahead = KEYS[14], whole(ARGV[1], 0, 1000), whole(ARGV[2], 0, 4e15), whole(ARGV[3], 0, 4e15)
if not most or not chance or not ahead then return refuse('INVALID', 'give the most schedules to return, and a number') end
local now = clock()
local statuses, applied, sends, name_of = {}, {}, { '1' }, {}

local function unsettled(id)
  return id ~= '' and (call('ZSCORE', ready, id) or call('ZSCORE', leased, id) or call('ZSCORE', retrying, id)
    or call('ZSCORE', scheduled, id))
end

local at = 4
while at < #ARGV do
  local name, before, after, passed, due, count = unpack(ARGV, at, at + 5)
  local record, early, place = call('HGET', schedules, name), false, #sends
  at = at + 6
  for i = at, at + 4 * count - 1, 4 do
    early = early or tonumber(ARGV[i + 1]) > now
    sends[#sends + 1], sends[#sends + 2], sends[#sends + 3], sends[#sends + 4] = ARGV[i], '', ARGV[i + 2], ARGV[i + 3]
    name_of[ARGV[i]] = name
  end
  at = at + 4 * count
  local status = 'changed'
  if record and not early and string.sub(record, 1, #before + 1) == before .. '\n' then
    status = passed ~= '' and unsettled(match(before, '^[^\t]*')) and 'passed' or 'fired'
    local head = status == 'passed' and passed or after
    applied[#applied + 1] = { name, head .. string.sub(record, #before + 1), due }
  end
  if status ~= 'fired' then
    for i = #sends, place + 1, -1 do sends[i] = nil end
  end
  statuses[#statuses + 1] = status
end

if #sends > 1 then
  local plain = write
  write = function(base, lines, terminal, bodies)
    for i = 1, #lines do
      lines[i] = lines[i] .. 'schedule ' .. name_of[match(lines[i], '^%d\t%a+\t%a+\t%d+\t([^\t]*)')]
    end
    plain(base, lines, terminal, bodies)
  end
  for i = #ARGV, 1, -1 do ARGV[i] = nil end
  for i = 1, #sends do ARGV[i] = sends[i] end
  local stored = require('send') -- it reads KEYS and ARGV
  if type(stored) == 'table' and stored.err then return stored end
end
for i = 1, #applied do
  local name, record, due = unpack(applied[i])
  call('HSET', schedules, name, record)
  if due == '' then call('ZREM', ticks, name) else call('ZADD', ticks, due, name) end
end

local waiting = call('ZCOUNT', ticks, '-inf', now)
local from = waiting > most and chance % (waiting - most + 1) or 0
local names = most > 0 and call('ZRANGEBYSCORE', ticks, '-inf', now, 'LIMIT', from, most) or {}
if waiting == 0 and most > 0 then
  names = call('ZRANGEBYSCORE', ticks, '(' .. now, now + ahead, 'LIMIT', 0, most)
end
local records = #names > 0 and call('HMGET', schedules, unpack(names)) or {}
local head = call('ZRANGE', ticks, 0, 0, 'WITHSCORES')
local reply = { now, head[2] and format('%d', head[2]) or '', statuses }
for i = 1, #names do
  if records[i] then
    reply[#reply + 1], reply[#reply + 2] = names[i], records[i]
  else
    call('ZREM', ticks, names[i]) -- removed by hand
  end
end
return reply
