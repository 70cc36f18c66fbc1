-- Changes a message that nobody holds: payload, headers, priority or due time; its place in line stays.
-- KEYS: queue journal messages deliveries ready scheduled retrying dead marker
-- ARGV: operator, id, stored form without sent_at, priority, due_at ms ("" to leave it)
-- Returns the state the message is in, "" if there is none, "leased" if it is held and unchanged.
-- Journal: edited
local messages, deliveries, ready, scheduled, retrying = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local dead, marker = KEYS[8], KEYS[9]
local operator, id, body, priority, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not whole(priority, 0, 255) then return refuse('INVALID', 'priority must be 0 to 255') end
if due ~= '' and not whole(due, 0, 4e15) then return refuse('INVALID', 'due is not a whole number of milliseconds') end
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due')
open(set[1], set[2])
local old = call('HGET', messages, id)
if not old then return '' end
local now, place, state = clock(), nil, 'leased'
for name, zset in pairs({ ready = ready, scheduled = scheduled, retrying = retrying, dead = dead }) do
  if call('ZSCORE', zset, id) then place, state = zset, name end
end
if not place then return call('HGET', deliveries, id) and 'leased' or '' end
local fresh = slice(old, 1, 14) .. body
local facts, limits = read(fresh)
local before = call('HGET', deliveries, id)
local d = before and parse(before)
write(advance('edited', 1),
  { line('edited', state, now, id, facts, d and d.attempts or 0, operator, due, '', '') }, false)
call('HSET', messages, id, fresh)
local function moved(score) return format('%.0f', (255 - priority) * SPAN + tonumber(score) % SPAN) end
if d then
  d.score, d.facts, d.limits = moved(d.score), facts, limits
  call('HSET', deliveries, id, pack(d))
end
if state == 'ready' then call('ZADD', ready, moved(call('ZSCORE', ready, id)), id) end
if due ~= '' and (state == 'scheduled' or state == 'retrying') then
  call('ZADD', place, due, id)
  wake_by(marker, set[3], tonumber(due), now)
end
return state
