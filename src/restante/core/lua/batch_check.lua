-- Finds out which messages are not in a queue. Their ids are stored as acked, so that no late send stores them after
-- all, as long as the queue recognises repeated ids.
-- KEYS: queue journal messages acked acked_before
-- ARGV: message ids
-- Returns the ids of those that are missing.
-- Journal: none
local messages, acked, acked_before, missing = KEYS[3], KEYS[4], KEYS[5], {}
for i = 1, #ARGV do
  if call('HEXISTS', messages, ARGV[i]) == 0 then missing[#missing + 1] = ARGV[i] end
end
local window, since = unpack(call('HMGET', queue, 'dedup_ms', 'acked_since'))
local now, lasts = clock(), tonumber(window) or 60000
if #missing == 0 or lasts == 0 then return missing end
if now - (tonumber(since) or 0) >= 2 * lasts then
  -- What is stored has aged, and would count as new with the new beginning.
  call('UNLINK', acked)
  call('UNLINK', acked_before)
  call('HSET', queue, 'acked_since', format('%d', now))
end
for i = 1, #missing do call('HSETNX', acked, missing[i], '-') end
return missing
