-- Returns where one message is, without its payload, for a program that follows it.
-- KEYS: queue journal deliveries history ready scheduled retrying leased dead done acked acked_before
-- ARGV: id
-- Returns state ("" if there is none), delivery or "", last line of its history or "", 1 if it was acked within the
--         dedup window.
-- Journal: none
local deliveries, history, acked, acked_before = KEYS[3], KEYS[4], KEYS[11], KEYS[12]
local places = { ready = KEYS[5], scheduled = KEYS[6], retrying = KEYS[7], leased = KEYS[8], dead = KEYS[9],
  done = KEYS[10] }
local id, state = ARGV[1], ''
for name, zset in pairs(places) do
  if call('ZSCORE', zset, id) then state = name end
end
local lines = '\n' .. (call('HGET', history, id) or '')
local known = state == '' and call('HEXISTS', acked, id) + call('HEXISTS', acked_before, id) > 0
return { state, call('HGET', deliveries, id) or '', match(lines, '^.*\n([^\n]*)\n$') or '', known and 1 or 0 }
