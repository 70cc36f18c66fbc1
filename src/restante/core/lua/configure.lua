-- Sets or clears the queue's settings; a new version tells clients that their copy is outdated.
-- KEYS: queue journal marker
-- ARGV: operator, event ("configured", "paused", "resumed"), then field and value pairs ("" clears)
-- Returns the whole queue hash.
-- Journal: configured, paused, resumed
local m = require('moves')
local marker = KEYS[3]
local operator, event = ARGV[1], ARGV[2]
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
if call('EXISTS', queue) == 0 then
  -- The first value is documentation, and long: Redis scans hashes of short values from end to end.
  call('HSET', queue, 'about', 'settings, sequence, totals and bookkeeping of this Restante queue; edit by configure',
    'settings', '0', 'sequence', '0', 'due', '', 'sent', '0', 'received', '0', 'acked', '0', 'acked_since', '0',
    'journal_skip', '0', 'version', '0')
end
local changed = {}
for i = 3, #ARGV, 2 do
  if (call('HGET', queue, ARGV[i]) or '') ~= ARGV[i + 1] then changed[#changed + 1] = ARGV[i] end
end
if #changed > 0 then
  local now = clock()
  write(m.advance(event, 1),
    { m.line(event, 'gone', now, '', now .. '\t\t0\t0', 0, operator, '', '', table.concat(changed, ',')) }, true)
  for i = 3, #ARGV, 2 do
    if ARGV[i + 1] == '' then call('HDEL', queue, ARGV[i]) else call('HSET', queue, ARGV[i], ARGV[i + 1]) end
  end
  -- Acked ids were kept for the old window: the new window starts now.
  if string.find(',' .. table.concat(changed, ',') .. ',', ',dedup_ms,', 1, true) then
    call('HSET', queue, 'acked_since', format('%d', now))
  end
  local version = call('HINCRBY', queue, 'version', 1)
  -- The same settings in one field, which the verbs read at every call; only the version if all are defaults.
  local kept = call('HMGET', queue, 'journal', 'pause', 'lease_ms', 'max_attempts', 'dedup_ms', 'keep_done',
    'max_leased', 'rate', 'max_length', 'max_dead', 'max_payload_bytes')
  local packed = ''
  for i = 1, #kept do packed = packed .. '\t' .. (kept[i] or '') end
  if not string.find(packed, '[^\t]') then packed = '' end
  call('HSET', queue, 'settings', version .. packed)
  call('ZADD', marker, '0', '0')
end
call('HSETNX', queue, 'incarnation', format('%d', clock()))
return call('HGETALL', queue)
