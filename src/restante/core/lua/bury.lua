-- Dead-letters leased messages at once, whatever attempts are left.
-- KEYS: queue journal deliveries history leased dead unique marker outbox, and verdicts as in ack
-- ARGV: per message: id, token, error class, error text (JSON)
-- Returns the positions (1-based) whose lease is lost, and what follows them as in ack.
-- Journal: buried
local m = require('moves')
local k = { deliveries = KEYS[3], history = KEYS[4], leased = KEYS[5], dead = KEYS[6], unique = KEYS[7],
  outbox = KEYS[9] }
local marker, verdicts = KEYS[8], KEYS[10]
local set = call('HMGET', queue, 'journal', 'journal_skip', 'max_leased')
m.open(set[1], set[2])
local now, lost = clock(), {}
for i = 1, #ARGV, 4 do
  local id, token, class, text = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local d = m.held(call('HGET', k.deliveries, id), token, now)
  if not d then
    lost[#lost + 1] = (i + 3) / 4
  else
    write(m.advance('buried', 1), { m.line('buried', 'dead', now, id, d.facts, d.attempts, d.consumer, '', class, '') }, true)
    m.to_dead(k, id, d, now, 'buried', class, text)
  end
end
if verdicts then m.decided(verdicts, 'bury', lost, 1, 4) end
if set[3] then call('ZADD', marker, '0', '0') end
if noted and noted.sooner then call('ZADD', marker, '0', '0') end
return m.with_noted(lost)
