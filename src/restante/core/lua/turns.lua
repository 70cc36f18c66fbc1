-- Counts what a receive takes out of the lanes of its groups, and notes the turns that were served: a part of receive.lua,
-- small because it runs at every receive of a queue with groups and without limits for them. groups.lua has the layout.
local call, match, format = redis.call, string.match, string.format

-- `taken` holds how many messages were taken by lane, `names` the lanes, `tops` the last turn served by priority.
local function take(groups, since, names, taken, tops)
  local first = #names
  for priority in pairs(tops) do names[#names + 1] = '\t' .. priority end
  local found = call('HMGET', groups, unpack(names))
  local written, gone = {}, {}
  for i = 1, #names do
    local name, text, value = names[i], found[i], nil
    if i <= first then
      local count, last = match(text or '', '^(%d+)( .*)$')
      if count and tonumber(count) > taken[name] then
        value = format('%d', count - taken[name]) .. last
      elseif count then
        gone[#gone + 1] = name
      end
    else
      local turn = tonumber(tops[string.sub(name, 2)])
      local served, plain = match(text or '', '^(%d+) (%d+)$')
      if turn > (tonumber(served) or since) then value = format('%d ', turn) .. (plain or '0') end
    end
    if value then written[#written + 1], written[#written + 2] = name, value end
  end
  if #written > 0 then call('HSET', groups, unpack(written)) end
  if #gone > 0 then call('HDEL', groups, unpack(gone)) end
end

return take
