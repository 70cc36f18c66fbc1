-- Fails attempts: a message is retrying until its delay is over, or dead when no attempt is left.
-- KEYS: queue journal deliveries history retrying leased dead unique marker outbox, and verdicts as in ack
-- ARGV: per message: id, token, delay_ms ("dead" if the retry policy gives up), error class, error text (JSON)
-- Returns the positions (1-based) whose lease is lost, then the state reached per message ("" if lost). The positions
--         are followed as in ack.
-- Journal: nacked
local m = require('moves')
local k = { deliveries = KEYS[3], history = KEYS[4], retrying = KEYS[5], leased = KEYS[6], dead = KEYS[7],
  unique = KEYS[8], outbox = KEYS[10] }
local marker, verdicts = KEYS[9], KEYS[11]
local set = call('HMGET', queue, 'journal', 'journal_skip', 'max_attempts', 'due', 'max_leased')
m.open(set[1], set[2])
local now, part = clock()
local lost, states, soonest = {}, {}, nil
for i = 1, #ARGV, 5 do
  local delay = ARGV[i + 2]
  if delay ~= 'dead' and not whole(delay, 0, 4e15) then return refuse('INVALID', 'delay_ms must be a whole number') end
end
for i = 1, #ARGV, 5 do
  local id, token, delay, class, text = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local at = (i + 4) / 5
  local d = m.held(call('HGET', k.deliveries, id), token, now)
  states[at] = ''
  if not d then
    lost[#lost + 1] = at
  else
    local spent = delay == 'dead' or d.attempts >= m.allowed_attempts(d.limits, set[3])
    local due = spent and '' or format('%d', now + (tonumber(delay) > 0 and part or 0) + delay)
    states[at] = spent and 'dead' or 'retrying'
    write(m.advance('nacked', 1),
      { m.line('nacked', states[at], now, id, d.facts, d.attempts, d.consumer, due, class, '') }, spent)
    if spent then
      m.to_dead(k, id, d, now, 'nacked', class, text)
    else
      m.remember(k.history, id, d, now, 'nacked', class, text)
      d.token, d.expires = '', 0
      call('HSET', k.deliveries, id, m.pack(d))
      call('ZADD', k.retrying, due, id)
      call('ZREM', k.leased, id)
      m.hold_unique(k.unique, d.limits, id, 't')
      soonest = math.min(soonest or tonumber(due), tonumber(due))
    end
  end
end
if soonest then m.wake_by(marker, set[4], soonest, now) end
if verdicts then m.decided(verdicts, 'nack', lost, 1, 5) end
if set[5] then call('ZADD', marker, '0', '0') end
if noted and noted.sooner then call('ZADD', marker, '0', '0') end
return { m.with_noted(lost), unpack(states) }
