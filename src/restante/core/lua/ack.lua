-- Acks leased messages: removed, or done where the queue keeps results.
-- KEYS: queue journal messages deliveries history leased done unique acked acked_before ready marker
--       outbox, and verdicts where a lease journal stores them
-- ARGV: id and token per message
-- Returns the positions (1-based) whose lease is lost; an ack repeated with the same token is not lost. A 0 and what
--         was put into the outbox follow, if anything was.
-- Journal: acked
local k = { messages = KEYS[3], deliveries = KEYS[4], history = KEYS[5], leased = KEYS[6], done = KEYS[7],
  unique = KEYS[8], acked = KEYS[9], acked_before = KEYS[10] }
local ready, marker, outbox, verdicts = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local packed, sequence, total_acked, acked_since, skipped = unpack(call('HMGET', queue, 'settings', 'sequence',
  'acked', 'acked_since', 'journal_skip'))
local set, now, base = read_settings(packed), clock(), tonumber(sequence) or 0
local keep = tonumber(set.keep_done) or 0
skip = tonumber(skipped) or 0
if #ARGV == 0 or #ARGV > 2000 then return refuse('INVALID', 'give 1 to 1000 messages') end
local plan, apply = require('settling')
local gone, lines, lost = plan(1, now, keep, k.deliveries, k.unique, k.acked, k.acked_before, set.dedup_ms, acked_since,
  base, outbox)
if #gone > 0 then
  call('HSET', queue, 'sequence', format('%d', base + #gone), 'acked',
    format('%d', (tonumber(total_acked) or 0) + #gone))
  write(base, lines, true)
  apply(gone, now, keep, k)
end
if verdicts then require('moves').decided(verdicts, 'ack', lost, 1, 2) end
if tonumber(set.max_leased) and call('ZCARD', ready) > 0 then call('ZADD', marker, '0', '0') end
if not noted then return lost end
if noted.sooner then call('ZADD', marker, '0', '0') end
return require('moves').with_noted(lost)
