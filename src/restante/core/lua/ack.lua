-- Ends leased messages in success: gone, or done where the queue keeps results.
-- KEYS: queue journal messages deliveries history leased done unique acked acked_before ready marker
-- ARGV: id and token per message
-- Returns the positions (1-based) whose lease is lost; an ack repeated with the same token is not lost.
-- Journal: acked
local k = { messages = KEYS[3], deliveries = KEYS[4], history = KEYS[5], leased = KEYS[6], done = KEYS[7],
  unique = KEYS[8], acked = KEYS[9], acked_before = KEYS[10] }
local ready, marker = KEYS[11], KEYS[12]
local set = call('HMGET', queue, 'journal', 'journal_skip', 'dedup_ms', 'keep_done', 'max_leased', 'acked_since')
open(set[1], set[2])
local now, keep = clock(), tonumber(set[4]) or 0
local gone, lines, graves, lost = plan_acks(1, now, keep, k.deliveries, k.unique, k.acked, k.acked_before)
if #gone > 0 then
  local base = advance('acked', #gone)
  write(base, lines, true)
  apply_acks(gone, graves, base, now, set[3], set[6], keep, k)
end
if set[5] and call('ZCARD', ready) > 0 then call('ZADD', marker, 0, '0') end
return lost
