-- Adds messages to a batch, before they are sent: it cannot end while one of them has not.
-- A message that is added to a sealed batch is announced: if its sender dies before it is sent, whoever looks at the
-- outbox later finds out that it was not, and takes it out of the batch.
-- KEYS: queue journal outbox batch members
-- ARGV: batch as in the limits of its messages, ms after which an announced message is asked about, then queue and
--       message id per message
-- Returns the text in the outbox that announces them, "" if the batch is open; 0 if there is no such batch, -1 if it
--         has ended.
-- Journal: none
local outbox, batch, members = KEYS[3], KEYS[4], KEYS[5]
local name, patience = ARGV[1], whole(ARGV[2], 1, 4e12)
if not patience or #ARGV % 2 ~= 0 then return refuse('INVALID', 'give ms, and queue and id per message') end
local state = call('HGET', batch, 'state')
if not state then return 0 end
if state ~= 'open' and state ~= 'running' then return -1 end
local added = 0
for i = 3, #ARGV, 2 do
  added = added + call('HSETNX', members, ARGV[i + 1], 'p ' .. ARGV[i] .. ' 0 ')
end
call('HINCRBY', batch, 'total', added)
call('HINCRBY', batch, 'pending', added)
if state == 'open' then return '' end
local m, now = require('moves'), clock()
local set = call('HMGET', queue, 'sequence', 'due')
local at = format('%d', now + patience)
local entry = table.concat({ set[1] or '0', name, 'announced', at, table.concat(ARGV, ' ', 3) }, '\t')
call('ZADD', outbox, set[1] or '0', entry)
m.lower_due(set[2], now + patience)
return entry
