-- Creates the record of a batch, which then is open: messages may be added, and it does not end before it is sealed.
-- KEYS: queue journal batches batch
-- ARGV: batch id, nonce of this batch, then fields of the record and values
-- Returns 1, or 0 if another batch has this id.
-- Journal: none
local batches, batch = KEYS[3], KEYS[4]
local id, nonce = ARGV[1], ARGV[2]
local before = call('HGET', batch, 'nonce')
if before then return before == nonce and 1 or 0 end -- repeated, because the reply was lost
local now = format('%d', clock())
call('HSET', batch, 'nonce', nonce, 'state', 'open', 'created_at', now, unpack(ARGV, 3))
call('ZADD', batches, now, id)
return 1
