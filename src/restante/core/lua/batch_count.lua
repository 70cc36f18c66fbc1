-- Counts how messages of a batch have ended, and ends the batch with the last of them. An entry that was counted before
-- changes nothing, so what is in an outbox may be carried by several at once.
-- KEYS: queue journal messages ready marker outbox batches batches_ended batch members, and source where the outbox
--       that the entries are from is on this server: they are removed from it
-- ARGV: batch as in the limits of its messages, queue the entries are from, then the entries
-- Returns what was put into the outbox for the batch that this one is a part of.
-- Journal: sent
local k = { messages = KEYS[3], ready = KEYS[4], marker = KEYS[5], outbox = KEYS[6], batches = KEYS[7],
  batches_ended = KEYS[8], batch = KEYS[9], members = KEYS[10] }
local outbox = KEYS[11]
local name, source = ARGV[1], ARGV[2]
local b, now = require('batches'), clock()
if call('EXISTS', k.batch) == 1 then
  for i = 3, #ARGV do
    local sequence, how, id, class = match(ARGV[i], '^(%d+)\t[^\t]*\t([^\t]*)\t([^\t]*)\t(.*)$')
    if sequence then b.count(k, name, source, tonumber(sequence), how, id, class, now) end
  end
  b.finish(k, name, now)
end
if outbox then call('ZREM', outbox, unpack(ARGV, 3)) end
if noted and noted.sooner then call('ZADD', k.marker, '0', '0') end
return noted or {}
