-- Returns all data of one message.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done
-- ARGV: id
-- Returns now, state ("" if there is none), score, stored form, delivery or "", history or "".
-- Journal: none
local messages, deliveries, history = KEYS[3], KEYS[4], KEYS[5]
local places = { ready = KEYS[6], scheduled = KEYS[7], retrying = KEYS[8], leased = KEYS[9], dead = KEYS[10],
  done = KEYS[11] }
local id, state, score = ARGV[1], '', ''
for name, zset in pairs(places) do
  local found = call('ZSCORE', zset, id)
  if found then state, score = name, found end
end
return { clock(), state, score, call('HGET', messages, id) or '', call('HGET', deliveries, id) or '',
  call('HGET', history, id) or '' }
