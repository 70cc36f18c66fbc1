-- Gives messages up: removes those that wait, and takes those that are leased from their consumers and removes them.
-- The tokens of the latter are kept until their leases would have ended, so that the consumers learn why.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done unique marker cancelled
--       outbox
-- ARGV: operator, detail for the journal (follows the state it was in), then message ids
-- Returns per message the state it was in, "dead" and "done" if it has ended and stays, "" if there is none; behind
--         them what was put into the outbox.
-- Journal: cancelled
local m = require('moves')
local messages, deliveries, history, leased, unique = KEYS[3], KEYS[4], KEYS[5], KEYS[9], KEYS[12]
local marker, cancelled, outbox = KEYS[13], KEYS[14], KEYS[15]
local places = { ready = KEYS[6], scheduled = KEYS[7], retrying = KEYS[8], leased = leased, dead = KEYS[10],
  done = KEYS[11] }
local operator, detail = ARGV[1], ARGV[2] ~= '' and ', ' .. ARGV[2] or ''
local set = call('HMGET', queue, 'journal', 'journal_skip', 'max_leased')
m.open(set[1], set[2])
local now, reply, freed = clock(), {}, false
for i = 3, #ARGV do
  local id, from = ARGV[i], ''
  local body = call('HGET', messages, id)
  for state, zset in pairs(places) do
    if body and call('ZSCORE', zset, id) then from = state end
  end
  if from ~= '' and from ~= 'dead' and from ~= 'done' then
    local facts, limits = m.read(body)
    local before = call('HGET', deliveries, id)
    local d = before and m.parse(before)
    write(m.advance('cancelled', 1),
      { m.line('cancelled', 'gone', now, id, facts, d and d.attempts or 0, operator, '', '', from .. detail) }, true)
    if from == 'leased' then
      call('ZREMRANGEBYSCORE', cancelled, '-inf', now)
      if d.expires > now then call('ZADD', cancelled, format('%d', d.expires), d.token) end
      freed = true
    end
    m.hold_unique(unique, limits, id, 'g')
    call('ZREM', places[from], id)
    m.forget(messages, deliveries, history, { id })
    m.note(outbox, limits, id, 'cancelled', '', now)
  end
  reply[i - 2] = from
end
if freed and set[3] then call('ZADD', marker, '0', '0') end
if noted and noted.sooner then call('ZADD', marker, '0', '0') end
for i = 1, noted and #noted or 0 do reply[#ARGV - 2 + i] = noted[i] end
return reply
