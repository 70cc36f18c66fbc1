-- Returns all data of one message.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done held
-- ARGV: id
-- Returns now, state ("" if there is none), score (for one held back its member of held), stored form, delivery or "",
--         history or "".
-- Journal: none
local messages, deliveries, history = KEYS[3], KEYS[4], KEYS[5]
local places = { ready = KEYS[6], scheduled = KEYS[7], retrying = KEYS[8], leased = KEYS[9], dead = KEYS[10],
  done = KEYS[11] }
local held = KEYS[12]
local id, state, score = ARGV[1], '', ''
for name, zset in pairs(places) do
  local found = call('ZSCORE', zset, id)
  if found then state, score = name, found end
end
local body, delivery = call('HGET', messages, id), call('HGET', deliveries, id)
local member = body and state == '' and require('moves').held_back(held, id, body, delivery)
if member then state, score = 'ready', member end
return { clock(), state, score, body or '', delivery or '', call('HGET', history, id) or '' }
