-- Pauses or resumes one group: messages of a paused group are not delivered and wait in `held`.
-- KEYS: queue journal marker groups held ready
-- ARGV: operator, event ("paused", "resumed"), group
-- Returns 1 if that changed anything.
-- Journal: paused, resumed
local m, part = require('moves'), require('groups')
local marker, groups, held, ready = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local operator, event, group = ARGV[1], ARGV[2], ARGV[3]
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local book = part.open_book({ groups = groups, held = held, ready = ready })
local record, pausing = part.record_of(book, group), event == 'paused'
local flagged = match(record.flags, 'p') ~= nil
if flagged == pausing then return 0 end
local now = clock()
local base = m.advance(event, 1)
write(base, { m.line(event, 'gone', now, '', now .. '\t\t0\t0', 0, operator, '', '', 'group', '\t\t\t\t' .. group) },
  true)
if not book.since then part.begin(book, base + 1) end
record.flags, record.changed = pausing and 'p' .. record.flags or string.gsub(record.flags, 'p', '', 1), true
call('HINCRBY', queue, 'groups_paused', pausing and 1 or -1)
m.repack(call('HINCRBY', queue, 'version', 1))
part.save(book)
if not pausing and call('EXISTS', held) == 1 then
  call('HSET', queue, 'group_cursor', '-', 'due', '0')
  call('ZADD', marker, '0', '0')
end
return 1
