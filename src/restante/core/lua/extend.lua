-- Extends leases, counted from now by the server's clock.
-- KEYS: queue journal deliveries leased consumers cancelled
-- ARGV: consumer, its registry entry ("" for none), then per message: id, token, lease_ms
-- Returns the positions (1-based) whose lease is lost, those of them whose message was cancelled, then
--         lease_expires_at per message ("" if lost).
-- Journal: extended
local m = require('moves')
local deliveries, leased, consumers, cancelled = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local consumer, presence = ARGV[1], ARGV[2]
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due')
m.open(set[1], set[2])
local now, lost, given_up, reply, lines, soonest = clock(), {}, {}, {}, {}, nil
for i = 3, #ARGV, 3 do
  if not whole(ARGV[i + 2], 1, 4e12) then return refuse('INVALID', 'lease_ms must be at least 1') end
end
for i = 3, #ARGV, 3 do
  local id, at = ARGV[i], i / 3
  local d = m.held(call('HGET', deliveries, id), ARGV[i + 1], now)
  reply[at] = ''
  if not d then
    lost[#lost + 1] = at
    if call('ZSCORE', cancelled, ARGV[i + 1]) then given_up[#given_up + 1] = at end
  else
    d.expires = now + ARGV[i + 2]
    local expires_at = format('%d', d.expires)
    lines[#lines + 1] = m.line('extended', 'leased', now, id, d.facts, d.attempts, d.consumer, expires_at, '', '')
    call('HSET', deliveries, id, m.pack(d) .. d.progress)
    call('ZADD', leased, expires_at, id)
    soonest = math.min(soonest or d.expires, d.expires)
    reply[at] = expires_at
  end
end
if #lines > 0 then
  write(m.advance('extended', #lines), lines, false)
  m.lower_due(set[3], soonest)
end
if presence ~= '' then call('HSET', consumers, consumer, now .. '\t' .. presence) end
return { lost, given_up, unpack(reply) }
