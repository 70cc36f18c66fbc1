-- Removes messages by id, in any state but leased.
-- KEYS: queue journal messages deliveries history ready scheduled retrying dead done leased unique outbox
-- ARGV: operator, detail for the journal (follows the state it was in; a tab before "moved to" and a queue: the message
--       has a copy there), then message ids
-- Returns per message the state it was deleted from, "leased" if it is leased and stays, "" if there is none.
-- Journal: deleted
local m = require('moves')
local messages, deliveries, history, leased, unique = KEYS[3], KEYS[4], KEYS[5], KEYS[11], KEYS[12]
local outbox, target = KEYS[13], match(ARGV[2], '^\tmoved to (.*)$')
local places = { ready = KEYS[6], scheduled = KEYS[7], retrying = KEYS[8], dead = KEYS[9], done = KEYS[10] }
local operator, detail = ARGV[1], ARGV[2] ~= '' and ', ' .. string.gsub(ARGV[2], '^\t', '') or ''
local set = call('HMGET', queue, 'journal', 'journal_skip')
m.open(set[1], set[2])
local now, reply = clock(), {}
for i = 3, #ARGV do
  local id, from = ARGV[i], ''
  local body = call('HGET', messages, id)
  if body and call('ZSCORE', leased, id) then
    from = 'leased'
  elseif body then
    for state, zset in pairs(places) do
      if call('ZSCORE', zset, id) then from = state end
    end
    local facts, limits = m.read(body)
    local before = call('HGET', deliveries, id)
    local attempts = before and m.parse(before).attempts or 0
    write(m.advance('deleted', 1),
      { m.line('deleted', 'gone', now, id, facts, attempts, operator, '', '', from .. detail) }, true)
    m.hold_unique(unique, limits, id, 'g')
    if from ~= '' then call('ZREM', places[from], id) end
    m.forget(messages, deliveries, history, { id })
    if target or (from ~= 'dead' and from ~= 'done') then
      m.note(outbox, limits, id, target and 'moved' or 'deleted', target or '', now)
    end
  end
  reply[i - 2] = from
end
return reply
