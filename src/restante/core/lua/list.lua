-- Returns one page of a state in the order of its index, from a cursor that stays valid while messages come and go. The
-- ready messages that their groups hold back follow the others, by group and place.
-- KEYS: queue journal messages deliveries history held zset-of-the-state
-- ARGV: limit, bytes of each payload to return, cursor score ("" from the start, "inf" for a member of held), cursor id
--       or member, "1" for newest first, "1" if held belongs to the state, group to keep ("" for all)
-- Returns now, score and id of the last entry looked at ("" if these were the last), then per message: id, score (its
--         member, for one of held), stored form (cut), delivery or "", last line of its history or "".
-- Journal: none
local m = require('moves')
local messages, deliveries, history, held, zset = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local limit, cut, score, after, back = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5] == '1'
local both, wanted = ARGV[6] == '1', ARGV[7]
local look = wanted == '' and limit or 1000 -- entries looked at for one group
local reply = { (clock()), '', '' }
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
-- The entries of the index behind the cursor, id and score in turn, up to `most` of them.
local function of_index(most)
  if score == 'inf' and not back then return {} end
  -- Finds the rank of the first entry after the cursor, by bisection: exact for any number of equal scores.
  local size = call('ZCARD', zset)
  local start = back and size - 1 or 0
  if score ~= '' and score ~= 'inf' then
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
  if most == 0 or start < 0 or start >= size then return {} end
  if back then return call('ZREVRANGE', zset, size - 1 - start, size - 2 - start + most, 'WITHSCORES') end
  return call('ZRANGE', zset, start, start + most - 1, 'WITHSCORES')
end
-- The same of the messages that are held back: each member twice, of which the first becomes the id below.
local function of_held(most)
  if not both or most == 0 or (back and score ~= '' and score ~= 'inf') then return {} end
  local from = score == 'inf' and '(' .. after or (back and '+' or '-')
  local members = back and call('ZREVRANGEBYLEX', held, from, '-', 'LIMIT', 0, most)
    or call('ZRANGEBYLEX', held, from, '+', 'LIMIT', 0, most)
  local found = {}
  for i = 1, #members do found[2 * i - 1], found[2 * i] = match(members[i], '\t%d*\t(.*)$'), members[i] end
  return found
end
local found = back and of_held(look) or of_index(look)
local rest = look - #found / 2
local others = back and of_index(rest) or of_held(rest)
for i = 1, #others do found[#found + 1] = others[i] end
for i = 1, #found, 2 do
  local id, body = found[i], call('HGET', messages, found[i]) or ''
  local _, limits = m.read(body)
  if wanted == '' or m.group_of(limits) == wanted then
    local lines = call('HGET', history, id) or ''
    reply[#reply + 1] = id
    reply[#reply + 1] = found[i + 1]
    reply[#reply + 1] = preview(body)
    reply[#reply + 1] = call('HGET', deliveries, id) or ''
    -- Anchored: from the start of each line anew, the same match would take a time that grows with the square.
    reply[#reply + 1] = match('\n' .. lines, '^.*\n([^\n]*)\n$') or ''
  end
  if #reply == 3 + 5 * limit or i + 1 == 2 * look then
    reply[2], reply[3] = found[i + 1], id
    return reply
  end
end
return reply
