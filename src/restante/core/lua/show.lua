-- Everything known of one message.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done
-- ARGV: id
-- Returns now, state ("" if there is none), score, stored form, delivery or "", history or "".
-- Journal: none
local messages, deliveries, history = KEYS[3], KEYS[4], KEYS[5]
local names = { 'ready', 'scheduled', 'retrying', 'leased', 'dead', 'done' }
local id, state, score = ARGV[1], '', ''
for i = 1, #names do
  local found = call('ZSCORE', KEYS[5 + i], id)
  if found then state, score = names[i], found end
end
return { clock(), state, score, call('HGET', messages, id) or '', call('HGET', deliveries, id) or '',
  call('HGET', history, id) or '' }
