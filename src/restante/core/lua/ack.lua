-- Acks leased messages: removed, or done where the queue keeps results.
-- KEYS: queue journal messages deliveries history leased done unique acked acked_before ready marker,
--       and verdicts where a lease journal stores them
-- ARGV: id and token per message
-- Returns the positions (1-based) whose lease is lost; an ack repeated with the same token is not lost.
-- Journal: acked
local k = { messages = KEYS[3], deliveries = KEYS[4], history = KEYS[5], leased = KEYS[6], done = KEYS[7],
  unique = KEYS[8], acked = KEYS[9], acked_before = KEYS[10] }
local ready, marker, verdicts = KEYS[11], KEYS[12], KEYS[13]
local set = call('HMGET', queue, 'settings', 'sequence', 'acked', 'acked_since', 'journal_skip')
local dedup, keep, max_leased, _
if set[1] and #set[1] > 11 then
  _, level, _, _, _, dedup, keep, max_leased = match(set[1], SETTINGS)
  level = level ~= '' and level or 'full'
end
keep, skip = tonumber(keep) or 0, tonumber(set[5]) or 0
local now, base = clock(), tonumber(set[2]) or 0
if #ARGV == 0 or #ARGV > 2000 then return refuse('INVALID', 'give 1 to 1000 messages') end
local plan, apply = settling()
local gone, lines, lost = plan(1, now, keep, k.deliveries, k.unique, k.acked, k.acked_before, dedup, set[4], base)
if #gone > 0 then
  call('HSET', queue, 'sequence', format('%d', base + #gone), 'acked', format('%d', (tonumber(set[3]) or 0) + #gone))
  write(base, lines, true)
  apply(gone, now, keep, k)
end
if verdicts then moves().decided(verdicts, 'ack', lost, 1, 2) end
if tonumber(max_leased) and call('ZCARD', ready) > 0 then call('ZADD', marker, '0', '0') end
return lost
