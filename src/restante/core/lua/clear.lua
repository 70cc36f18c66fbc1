-- Removes the rows of a lease journal up to a number, with their verdicts, once their batch is committed.
-- KEYS: queue journal leases verdicts
-- ARGV: number of the last row to remove, entries per call
-- Returns how many entries were removed; call again until it is 0.
-- Journal: none
local leases, verdicts = KEYS[3], KEYS[4]
local upto, limit = whole(ARGV[1], 0, 9e15), tonumber(ARGV[2])
if not upto then return refuse('INVALID', 'the number must be whole') end
local entries = call('XRANGE', leases, '-', format('0-%d', upto), 'COUNT', limit)
for i = 1, #entries do
  local fields, tokens = entries[i][2], {}
  for j = 2, #fields, 2 do tokens[#tokens + 1] = match(fields[j], '^[^\n]*') end
  call('HDEL', verdicts, unpack(tokens))
  call('XDEL', leases, entries[i][1])
end
return #entries
