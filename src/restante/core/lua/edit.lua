-- Changes payload, headers, priority or due time of a message that is not leased; its place stays, except that a new
-- priority gives it a new turn in a queue with groups.
-- KEYS: queue journal messages deliveries ready scheduled retrying dead marker groups held
-- ARGV: operator, id, stored form without sent_at, priority, due_at ms ("" to leave it)
-- Returns the state the message is in, "" if there is none, "leased" if it is leased and unchanged.
-- Journal: edited
local m = require('moves')
local messages, deliveries, ready, scheduled, retrying = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local dead, marker, held = KEYS[8], KEYS[9], KEYS[11]
local k = { groups = KEYS[10], held = held, ready = ready }
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
local before = call('HGET', deliveries, id)
local member = not place and m.held_back(held, id, old, before)
if member then place, state = ready, 'ready' end
if not place then return m.parse(call('HGET', deliveries, id)).token ~= '' and 'leased' or '' end
local number, sent = match(old, '^(%d+)\n(%d+\t)')
local facts, limits = m.read(number .. '\n' .. sent .. body)
local d = before and m.parse(before)
local sequence = d and d.sequence or number
if (d or state == 'ready') and not string.find((m.read(old)), '\t' .. priority .. '\t%d+$') then
  -- In a queue with groups each priority has a clock of its own.
  sequence = m.place(k, facts, limits, sequence)
  if state == 'ready' then
    m.regroup(k, (m.read(old)), limits, 'r')
    m.regroup(k, facts, limits, nil, 'r')
  end
end
local fresh = (d and number or sequence) .. '\n' .. sent .. body
write(m.advance('edited', 1),
  { m.line('edited', state, now, id, facts, d and d.attempts or 0, operator, due, '', '', limits) }, false, { id, fresh })
call('HSET', messages, id, fresh)
if d then
  d.facts, d.limits, d.sequence = facts, limits, sequence
  call('HSET', deliveries, id, m.pack(d))
end
if member then
  local moved = m.group_of(limits) .. '\t' .. format('%016d', m.position(facts, sequence)) .. '\t' .. id
  if moved ~= member then
    call('ZADD', held, '0', moved)
    call('ZREM', held, member)
  end
elseif state == 'ready' then
  call('ZADD', ready, m.position(facts, sequence), id)
end
m.regrouped(marker)
if due ~= '' and (state == 'scheduled' or state == 'retrying') then
  call('ZADD', place, due, id)
  m.wake_by(marker, set[3], tonumber(due), now)
end
return state
