-- Sets or clears the queue's settings; the version tells clients that theirs are old.
-- KEYS: queue journal marker
-- ARGV: operator, event ("configured", "paused", "resumed"), then field and value pairs ("" clears)
-- Returns the whole queue hash.
-- Journal: configured, paused, resumed
local marker = KEYS[3]
local operator, event = ARGV[1], ARGV[2]
local set = call('HMGET', queue, 'journal', 'journal_skip')
open(set[1], set[2])
local changed = {}
for i = 3, #ARGV, 2 do
  if (call('HGET', queue, ARGV[i]) or '') ~= ARGV[i + 1] then changed[#changed + 1] = ARGV[i] end
end
if #changed > 0 then
  local now = clock()
  write(advance(event, 1),
    { line(event, 'gone', now, '', now .. '\t\t0\t0', 0, operator, '', '', table.concat(changed, ',')) }, true)
  for i = 3, #ARGV, 2 do
    if ARGV[i + 1] == '' then call('HDEL', queue, ARGV[i]) else call('HSET', queue, ARGV[i], ARGV[i + 1]) end
  end
  call('HINCRBY', queue, 'version', 1)
  call('ZADD', marker, 0, '0')
end
if call('HSETNX', queue, 'incarnation', clock()) == 1 then call('HSETNX', queue, 'version', 1) end
return call('HGETALL', queue)
