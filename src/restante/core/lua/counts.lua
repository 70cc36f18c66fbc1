-- Counts the messages of each state and the overdue leases, and reads the queue's settings and totals.
-- KEYS: queue journal ready scheduled retrying leased dead done messages
-- ARGV: none
-- Returns now, six counts in the order of KEYS, overdue, sent_at of the first ready message or "", the queue hash, and
--         the lowest score of scheduled, retrying, leased, dead and done, each or "".
-- Journal: none
local ready, scheduled, retrying, leased, dead, done, messages = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8],
  KEYS[9]
local now = clock()
local first = call('ZRANGE', ready, 0, 0)[1]
local body = first and call('HGET', messages, first)
local edges = {}
for i, zset in ipairs({ scheduled, retrying, leased, dead, done }) do
  edges[i] = call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2] or ''
end
return { now, call('ZCARD', ready), call('ZCARD', scheduled), call('ZCARD', retrying), call('ZCARD', leased),
  call('ZCARD', dead), call('ZCARD', done), call('ZCOUNT', leased, '-inf', now), body and match(body, '^%d+\n(%d+)') or '',
  call('HGETALL', queue), edges }
