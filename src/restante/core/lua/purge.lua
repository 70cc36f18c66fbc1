-- Removes up to `limit` messages of one state, or those of the given ids that are in it, with one journal entry of a line
-- each.
-- KEYS: queue journal messages deliveries history unique marker outbox groups held ready zset-of-the-state
-- ARGV: operator, state, limit, then message ids ("" for the first ones)
-- Returns how many were removed.
-- Journal: purged
local m = require('moves')
local messages, deliveries, history, unique, marker = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local outbox, groups, held, ready, zset = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local k = { groups = groups, held = held, ready = ready }
local waited = ARGV[2] ~= 'dead' and ARGV[2] ~= 'done'
local operator, state, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local ids, members = {}, {}
if #ARGV > 3 then
  for i = 4, #ARGV do
    local id = ARGV[i]
    local body = state == 'ready' and call('HGET', messages, id)
    local member = body and m.held_back(held, id, body, call('HGET', deliveries, id))
    if member then members[#members + 1] = member end
    if member or call('ZSCORE', zset, id) then ids[#ids + 1] = id end
  end
else
  ids = call('ZRANGE', zset, 0, limit - 1)
  if #ids == 0 and state == 'ready' then
    members = call('ZRANGE', held, 0, limit - 1)
    for i = 1, #members do ids[i] = match(members[i], '^[^\t]*\t%d*\t(.*)$') end
  end
end
if #ids == 0 then return 0 end
local now, lines, batched = clock(), {}, {}
local before = call('HMGET', deliveries, unpack(ids))
for i = 1, #ids do
  -- One by one: all payloads together may be more than the server can hold twice.
  local facts, limits = m.read(call('HGET', messages, ids[i]) or '')
  local attempts = before[i] and m.parse(before[i]).attempts or 0
  lines[i] = m.line('purged', 'gone', now, ids[i], facts, attempts, operator, '', '', state, limits)
  m.hold_unique(unique, limits, ids[i], 'g')
  m.regroup(k, facts, limits, m.letter(state, before[i]))
  if waited and m.batch_of(limits) then batched[ids[i]] = limits end
end
write(m.advance('purged', #ids), lines, true)
for id, limits in pairs(batched) do m.note(outbox, limits, id, 'purged', '', now) end
call('ZREM', zset, unpack(ids))
if #members > 0 then call('ZREM', held, unpack(members)) end
m.forget(messages, deliveries, history, ids)
m.regrouped(marker)
return #ids
