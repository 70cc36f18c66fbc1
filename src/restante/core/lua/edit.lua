-- Changes payload, headers, priority or due time of a message that is not leased; its sequence number stays.
-- KEYS: queue journal messages deliveries ready scheduled retrying dead marker
-- ARGV: operator, id, stored form without sent_at, priority, due_at ms ("" to leave it)
-- Returns the state the message is in, "" if there is none, "leased" if it is leased and unchanged.
-- Journal: edited
local m = require('moves')
local messages, deliveries, ready, scheduled, retrying = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local dead, marker = KEYS[8], KEYS[9]
local operator, id, body, priority, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not whole(priority, 0, 255) then return refuse('INVALID', 'priority must be 0 to 255') end
if due ~= '' and not whole(due, 0, 4e15) then return refuse('INVALID', 'due is not a whole number of milliseconds') end
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due')
m.open(set[1], set[2])
local old = call('HGET', messages, id)
if not old then return '' end
local now, place, state = clock(), nil, 'leased'
for name, zset in pairs({ ready = ready, scheduled = scheduled, retrying = retrying, dead = dead }) do
  if call('ZSCORE', zset, id) then place, state = zset, name end
end
if not place then return m.parse(call('HGET', deliveries, id)).token ~= '' and 'leased' or '' end
local fresh = match(old, '^%d+\n%d+\t') .. body
local facts, limits, sequence = m.read(fresh)
local before = call('HGET', deliveries, id)
local d = before and m.parse(before)
write(m.advance('edited', 1),
  { m.line('edited', state, now, id, facts, d and d.attempts or 0, operator, due, '', '') }, false, { id, fresh })
call('HSET', messages, id, fresh)
if d then
  d.facts, d.limits, sequence = facts, limits, d.sequence
  call('HSET', deliveries, id, m.pack(d))
end
if state == 'ready' then call('ZADD', ready, m.position(facts, sequence), id) end
if due ~= '' and (state == 'scheduled' or state == 'retrying') then
  call('ZADD', place, due, id)
  m.wake_by(marker, set[3], tonumber(due), now)
end
return state
