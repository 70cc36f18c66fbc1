-- Returns leased messages without counting the attempt: ready at their old position, or scheduled after a delay.
-- KEYS: queue journal deliveries ready scheduled leased unique marker, and verdicts as in ack
-- ARGV: delay_ms, then id and token per message
-- Returns the positions (1-based) whose lease is lost.
-- Journal: released
local m = require('moves')
local deliveries, ready, scheduled, leased, unique = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local marker, verdicts = KEYS[8], KEYS[9]
local delay = whole(ARGV[1], 0, 4e15)
if not delay then return refuse('INVALID', 'delay_ms must be a whole number') end
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due', 'max_leased')
m.open(set[1], set[2])
local now, part = clock()
local lost = {}
if delay > 0 then delay = delay + part end
local state, due = delay > 0 and 'scheduled' or 'ready', format('%d', now + delay)
local lines, moved = {}, {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local d = m.held(call('HGET', deliveries, id), ARGV[i + 1], now)
  if not d then
    lost[#lost + 1] = i / 2
  else
    moved[#moved + 1] = id
    lines[#lines + 1] = m.line('released', state, now, id, d.facts, d.attempts - 1, d.consumer, delay > 0 and due or '',
      '', '')
    d.token, d.expires, d.attempts = '', 0, d.attempts - 1
    call('HSET', deliveries, id, m.pack(d))
    call('ZADD', delay > 0 and scheduled or ready, delay > 0 and due or m.position(d.facts, d.sequence), id)
    call('ZREM', leased, id)
    m.hold_unique(unique, d.limits, id, delay > 0 and 's' or 'r')
  end
end
if verdicts then m.decided(verdicts, 'release', lost, 2, 2) end
if #moved > 0 then
  write(m.advance('released', #moved), lines, false)
  if delay > 0 then m.wake_by(marker, set[3], now + delay, now) end
  if delay == 0 or set[4] then call('ZADD', marker, '0', '0') end
end
return lost
