-- Notes how far the handler of a leased message is. The note stands with the delivery and ends with the lease.
-- KEYS: queue journal deliveries cancelled
-- ARGV: id, token, progress (JSON)
-- Returns 1 if it was noted, 0 if the lease is lost, -1 if the message was cancelled.
-- Journal: none
local m = require('moves')
local deliveries, cancelled = KEYS[3], KEYS[4]
local id, token, progress = ARGV[1], ARGV[2], ARGV[3]
local now = clock()
local d = m.held(call('HGET', deliveries, id), token, now)
if not d then return call('ZSCORE', cancelled, token) and -1 or 0 end
call('HSET', deliveries, id, m.pack(d) .. '\n' .. format('%d', now) .. '\t' .. progress)
return 1
