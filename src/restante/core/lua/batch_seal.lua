-- Seals a batch, confirms that announced messages were sent, or gives the batch up; ends it if nothing of it waits.
-- KEYS: queue journal messages ready marker outbox batches batches_ended batch members
-- ARGV: batch as in the limits of its messages, "seal", "confirm" or "cancel", the text in the outbox that announced
--       the messages ("" for none), then ids of messages that were added and not stored
-- Returns the state of the batch, "" if there is none; then what was put into the outbox.
-- Journal: sent
local k = { messages = KEYS[3], ready = KEYS[4], marker = KEYS[5], outbox = KEYS[6], batches = KEYS[7],
  batches_ended = KEYS[8], batch = KEYS[9], members = KEYS[10] }
local name, verb, announced = ARGV[1], ARGV[2], ARGV[3]
local b = require('batches')
local state, now = call('HGET', k.batch, 'state'), clock()
if not state then return { '' } end
for i = 4, #ARGV do b.leave_out(k, ARGV[i]) end
if announced ~= '' then call('ZREM', k.outbox, announced) end
if verb == 'seal' and state == 'open' then
  call('HSET', k.batch, 'state', 'running', 'sealed_at', format('%d', now))
elseif verb == 'cancel' and (state == 'open' or state == 'running') then
  call('HSET', k.batch, 'state', 'cancelled')
end
b.finish(k, name, now)
if noted and noted.sooner then call('ZADD', k.marker, '0', '0') end
return { call('HGET', k.batch, 'state'), unpack(noted or {}) }
