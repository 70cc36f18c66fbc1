-- Returns the record of a batch and the first messages of it that did not succeed.
-- KEYS: queue journal batch members
-- ARGV: none
-- Returns now, the record, then id and how it ended per message that failed first; an empty record if there is none.
-- Journal: none
local batch, members = KEYS[3], KEYS[4]
local reply = { clock(), call('HGETALL', batch) }
for id in string.gmatch(call('HGET', batch, 'failed') or '', '%S+') do
  local how = call('HGET', members, id)
  if how and string.sub(how, 1, 1) ~= 'p' then
    reply[#reply + 1] = id
    reply[#reply + 1] = how
  end
end
return reply
