-- Recognises messages that were sent before: a part of send.lua, for sends that may be repeated or have unique keys.
local call, match = redis.call, string.match
local seen = {} -- the ids and unique keys that this call stores

-- Returns the id of an earlier message with this id or with the unique key in this form, if any; else notes both.
-- `letter` is that of the state the message would have. The ids of a generation were acked within one window of its
-- beginning; after that they are dropped.
local function holder_of(id, form, letter, k, window, age)
  if seen[id] or call('HEXISTS', k.messages, id) == 1 or (age < 2 * window and call('HEXISTS', k.acked, id) == 1)
    or (age < window and call('HEXISTS', k.acked_before, id) == 1) then
    return id
  end
  local states, key = match(form, '^[^\n]*\n[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t([^\t\n]*)[\t\n]')
  if key and key ~= '' then
    local holder = seen['\t' .. key] or call('HGET', k.unique, key)
    if holder then return holder end
    if string.find(states, letter, 1, true) then seen['\t' .. key] = id end
  end
  seen[id] = true
end

return holder_of
