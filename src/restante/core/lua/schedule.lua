-- Stores, changes or removes a schedule, unless it has changed since the caller read it.
-- KEYS: queue journal marker schedules ticks
-- ARGV: author, detail for the journal, name, its head as read ("" if there was none), record ("" removes it), due ms of
--       its next tick ("" if none is to fire)
-- Returns 1, or 0 if it has changed meanwhile.
-- Journal: configured
local marker, schedules, ticks = KEYS[3], KEYS[4], KEYS[5]
local author, detail, name, before, record, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if due ~= '' and not whole(due, 0, 4e15) then return refuse('INVALID', 'due is not a whole number of milliseconds') end
local m = require('moves')
local kept, passed, settings = unpack(call('HMGET', queue, 'journal', 'journal_skip', 'settings'))
m.open(kept, passed)
local known = call('HGET', schedules, name)
if (known and match(known, '^[^\n]*') or '') ~= before then return 0 end
local now = clock()
write(m.advance('configured', 1),
  { m.line('configured', 'gone', now, '', now .. '\t\t0\t0', 0, author, due, '', detail) }, true)
local head = call('ZRANGE', ticks, 0, 0, 'WITHSCORES')
if record == '' then
  call('HDEL', schedules, name)
  call('ZREM', ticks, name)
else
  call('HSET', schedules, name, record)
  if due == '' then call('ZREM', ticks, name) else call('ZADD', ticks, due, name) end
end
local count = call('HLEN', schedules)
call('HSET', queue, 'schedules', count)
-- A new version lets clients read the settings again, and so look at the schedules: not for each of many new ones.
if due ~= '' and (not head[2] or tonumber(due) < tonumber(head[2])) then
  local version = call('HINCRBY', queue, 'version', 1)
  call('HSET', queue, 'settings', version .. match(settings or '', '^%d*(.*)$'))
  call('ZADD', marker, '0', '0')
end
return 1
