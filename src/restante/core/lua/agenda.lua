-- Returns schedules with the state of their last message: a page of all, or those with the given names.
-- KEYS: queue journal schedules ready scheduled retrying leased dead done
-- ARGV: cursor, about how many, then names ("" or none for all)
-- Returns now, the next cursor ("0" at the end), then per schedule: name, record, state of its last message or "".
-- Journal: none
local schedules, dead, done = KEYS[3], KEYS[8], KEYS[9]
local places = { ready = KEYS[4], scheduled = KEYS[5], retrying = KEYS[6], leased = KEYS[7], dead = dead, done = done }
local cursor, count = ARGV[1], ARGV[2]
local reply, found = { (clock()), '0' }, {}
if #ARGV > 2 then
  for i = 3, #ARGV do found[2 * i - 5], found[2 * i - 4] = ARGV[i], call('HGET', schedules, ARGV[i]) end
else
  local page = call('HSCAN', schedules, cursor, 'COUNT', count)
  reply[2], found = page[1], page[2]
end
for i = 1, #found, 2 do
  local record = found[i + 1]
  if record then
    local id, state = match(record, '^[^\t\n]*'), ''
    for name, zset in pairs(places) do
      if call('ZSCORE', zset, id) then state = name end
    end
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3] = found[i], record, state
  end
end
return reply
