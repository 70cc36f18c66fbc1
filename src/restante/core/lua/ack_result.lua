-- Acks one leased message with its result, which is kept in its history where the queue keeps done messages.
-- A script of its own, so that acks without a result pay nothing for it.
-- KEYS: queue journal messages deliveries history leased done unique acked acked_before ready marker
--       outbox
-- ARGV: result (JSON), id, token
-- Returns { 1 } if the lease is lost, else an empty list; an ack repeated with the same token is not lost. Then as ack.
-- Journal: acked
local k = { messages = KEYS[3], deliveries = KEYS[4], history = KEYS[5], leased = KEYS[6], done = KEYS[7],
  unique = KEYS[8], acked = KEYS[9], acked_before = KEYS[10] }
local ready, marker, outbox, result, id = KEYS[11], KEYS[12], KEYS[13], ARGV[1], ARGV[2]
local packed, sequence, total_acked, acked_since, skipped = unpack(call('HMGET', queue, 'settings', 'sequence',
  'acked', 'acked_since', 'journal_skip'))
local set, now, base = read_settings(packed), clock(), tonumber(sequence) or 0
local keep = tonumber(set.keep_done) or 0
skip = tonumber(skipped) or 0
if #ARGV ~= 3 then return refuse('INVALID', 'give one message and its result') end
local plan, apply = require('settling')
local gone, lines, lost = plan(2, now, keep, k.deliveries, k.unique, k.acked, k.acked_before, set.dedup_ms, acked_since,
  base, outbox)
if #gone > 0 then
  call('HSET', queue, 'sequence', format('%d', base + 1), 'acked', format('%d', (tonumber(total_acked) or 0) + 1))
  write(base, lines, true)
  if keep > 0 then
    local m = require('moves')
    m.remember(k.history, id, m.parse(call('HGET', k.deliveries, id)), now, 'acked', '', result)
  end
  apply(gone, now, keep, k)
end
if tonumber(set.max_leased) and call('ZCARD', ready) > 0 then call('ZADD', marker, '0', '0') end
if not noted then return lost end
if noted.sooner then call('ZADD', marker, '0', '0') end
return require('moves').with_noted(lost)
