-- Copies leased messages into a consumer's lease journal, whose rows stay readable after they are settled; without
-- messages it only renews the ownership.
-- KEYS: queue journal messages deliveries leases
-- ARGV: consumer, owner, ms the ownership lasts, then id and token per message
-- Returns the number of the journal's last row, then the owner ("" if another living process owns it; nothing is done).
-- Journal: none
local m = require('moves')
local messages, deliveries, leases = KEYS[3], KEYS[4], KEYS[5]
local consumer, owner, lasts = ARGV[1], ARGV[2], whole(ARGV[3], 1, 4e12)
if not lasts or owner == '' then return refuse('INVALID', 'give an owner, and at least 1 ms') end
local now, field = clock(), 'holder:' .. consumer
local holder, owned_until, last, before = match(call('HGET', queue, field) or '', '^([^\t]*)\t(%d+)\t(%d+)\t(.*)$')
last = tonumber(last) or 0
if holder and holder ~= owner and tonumber(owned_until) > now then return { last, '' } end
local rows = {}
for i = 4, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local d = m.held(call('HGET', deliveries, id), token, now)
  if d then
    rows[#rows + 1] = id
    rows[#rows + 1] = token .. '\n' .. d.attempts .. '\t' .. d.received .. '\n' .. (call('HGET', messages, id) or '')
  end
end
-- The reply may have been lost and the call repeated: the first token of the last call shows it.
local first = ARGV[5] or before or ''
if #rows > 0 and first ~= before then
  last = last + #rows / 2
  call('XADD', leases, format('0-%d', last), unpack(rows))
end
call('HSET', queue, field, table.concat({ owner, format('%d', now + lasts), format('%d', last), first }, '\t'))
return { last, owner }
