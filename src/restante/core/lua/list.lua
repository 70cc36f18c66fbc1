-- Returns one page of a state in the order of its index, from a cursor that stays valid while messages come and go.
-- KEYS: queue journal messages deliveries history zset-of-the-state
-- ARGV: limit, bytes of each payload to return, cursor score ("" from the start), cursor id, "1" for newest first
-- Returns now, then per message: id, score, stored form (cut), delivery or "", last line of its history or "".
-- Journal: none
local messages, deliveries, history, zset = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local limit, cut, score, after, back = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5] == '1'
local reply = { (clock()) }
-- Returns facts, limits and options complete, and the start of the payload; see stored.py for the layout.
local function preview(stored)
  local _, ends = string.find(stored, '^[^\n]*\n[^\n]*\n[^\n]*\n')
  local high, low = string.byte(stored, (ends or 0) + 5, (ends or 0) + 6)
  return string.sub(stored, 1, (ends or 0) + 6 + (high or 0) * 256 + (low or 0) + cut)
end
-- Compares by bytes, as the index does; Lua's own comparison follows the server's locale.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    if string.byte(a, i) ~= string.byte(b, i) then return string.byte(a, i) < string.byte(b, i) end
  end
  return #a < #b
end
-- Finds the rank of the first entry after the cursor, by bisection: exact for any number of equal scores.
local size = call('ZCARD', zset)
local start = back and size - 1 or 0
if score ~= '' then
  local low, high, at = 0, size, tonumber(score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = call('ZRANGE', zset, middle, middle, 'WITHSCORES')
    local s = tonumber(entry[2])
    if s < at or (s == at and (precedes(entry[1], after) or (not back and entry[1] == after))) then
      low = middle + 1
    else
      high = middle
    end
  end
  start = back and low - 1 or low
end
if start < 0 or start >= size then return reply end
local found
if back then
  found = call('ZREVRANGE', zset, size - 1 - start, size - 2 - start + limit, 'WITHSCORES')
else
  found = call('ZRANGE', zset, start, start + limit - 1, 'WITHSCORES')
end
for i = 1, #found, 2 do
  local id = found[i]
  local lines = call('HGET', history, id) or ''
  reply[#reply + 1] = id
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = preview(call('HGET', messages, id) or '')
  reply[#reply + 1] = call('HGET', deliveries, id) or ''
  -- Anchored: from the start of each line anew, the same match would take a time that grows with the square of the text.
  reply[#reply + 1] = match('\n' .. lines, '^.*\n([^\n]*)\n$') or ''
end
return reply
