-- Takes leased messages back from their consumers: ready at their old position, and the attempt counts. The token dies
-- at once, so a verdict of the consumer comes too late. A message without attempts left is delivered once more.
-- KEYS: queue journal deliveries history ready leased unique marker
-- ARGV: operator, detail for the journal (follows the consumer that held it), then message ids
-- Returns per message 1 if it was taken back, 0 if it was not leased.
-- Journal: revoked
local m = require('moves')
local deliveries, history, ready, leased, unique, marker = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local operator, detail = ARGV[1], ARGV[2] ~= '' and ', ' .. ARGV[2] or ''
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local now, reply, moved = clock(), {}, false
for i = 3, #ARGV do
  local id = ARGV[i]
  local d = call('ZSCORE', leased, id) and m.parse(call('HGET', deliveries, id))
  reply[i - 2] = d and 1 or 0
  if d then
    write(m.advance('revoked', 1), { m.line('revoked', 'ready', now, id, d.facts, d.attempts, operator, '', 'Revoked',
      d.consumer .. detail) }, false)
    m.remember(history, id, d, now, 'revoked', 'Revoked', '"an operator took the message back"')
    d.token, d.expires = '', 0
    call('HSET', deliveries, id, m.pack(d))
    call('ZADD', ready, m.position(d.facts, d.sequence), id)
    call('ZREM', leased, id)
    m.hold_unique(unique, d.limits, id, 'r')
    moved = true
  end
end
if moved then call('ZADD', marker, '0', '0') end
return reply
