-- Stores messages, each ready or scheduled; a message id that was sent before changes nothing.
-- KEYS: queue journal messages ready marker scheduled unique acked acked_before leased retrying dead
--       (the first six suffice unless an id may have been sent before, a unique key is given or the queue has limits)
-- ARGV: "1" if an id may have been sent before or a key is unique, then per message: id, due ("" now, "+ms" from now,
--       "ms"), priority, stored form without sequence and sent_at
-- Returns the sequence number before the first; with "1" a list: that number, then per message "" if stored or the id
--         of the earlier message that has its id or unique key.
-- Journal: sent
local messages, ready, marker, scheduled, unique, acked = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local acked_before, leased, retrying, dead = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local careful, argc = ARGV[1] == '1', #ARGV
local set = call('HMGET', queue, 'settings', 'sequence', 'sent', 'due', 'journal_skip', 'acked_since')
local base, known = tonumber(set[2]) or 0, tonumber(set[4])
local dedup, longest, max_length, max_dead, _
if set[1] and #set[1] > 11 then
  _, level, _, _, _, dedup, _, _, _, max_length, max_dead, longest = match(set[1], SETTINGS)
  level = level ~= '' and level or 'full'
  longest, max_length, max_dead = tonumber(longest), tonumber(max_length), tonumber(max_dead)
end
skip = tonumber(set[5]) or 0
local now, part = clock()
if (argc - 1) % 4 ~= 0 then return refuse('INVALID', 'a message takes four arguments') end
if (careful or max_length or max_dead) and not dead then return refuse('KEYS', 'every key is needed here') end

-- Returns the id of an earlier message with the id or unique key of the one at ARGV[i], if any.
local seen, statuses, holder_of
if careful then
  seen, statuses = {}, {}
  -- The ids of a generation were acked within one window of its beginning; after that they are dropped.
  local window, age = tonumber(dedup) or 60000, now - (tonumber(set[6]) or 0)
  function holder_of(i, letter)
    local id = ARGV[i]
    if seen[id] or call('HEXISTS', messages, id) == 1 or (age < 2 * window and call('HEXISTS', acked, id) == 1)
      or (age < window and call('HEXISTS', acked_before, id) == 1) then
      return id
    end
    local states, key = match(ARGV[i + 3], '^[^\n]*\n[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t([^\n]*)\n')
    if key and key ~= '' then
      local holder = seen['\t' .. key] or call('HGET', unique, key)
      if holder then return holder end
      if string.find(states, letter, 1, true) then seen['\t' .. key] = id end
    end
    seen[id] = true
  end
end

local stamp = format('%d', now)
local lead, n = '1\tsent\tready\t' .. stamp .. '\t', 0
local lines, bodies, readied, later, soonest = {}, {}, {}, nil, nil
for i = 2, argc, 4 do
  local id, due, priority, form = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local facts, size = match(form, '^([^\t\n]*\t%d+\t(%d+))\n[^\n]*\n')
  if not priority or priority < 0 or priority > 255 or priority % 1 ~= 0 then
    return refuse('INVALID', 'priority must be 0 to 255')
  elseif not facts then
    return refuse('INVALID', 'the stored form does not begin with facts and limits')
  elseif longest and tonumber(size) > longest then
    return refuse('TOOLARGE', 'max_payload_bytes is ' .. longest)
  elseif due ~= '' and not whole(due, 0, 4e15) then
    return refuse('INVALID', 'due is not a whole number of milliseconds')
  end
  local at = due == '' and now or string.byte(due) == 43 and now + part + due or tonumber(due)
  local holder = careful and holder_of(i, at > now and 's' or 'r')
  if careful then statuses[#statuses + 1] = holder or '' end
  if not holder then
    n = n + 1
    facts = stamp .. '\t' .. facts
    local sequence = format('%d', base + n)
    bodies[2 * n - 1], bodies[2 * n] = id, sequence .. '\n' .. stamp .. '\t' .. form
    if at > now then
      later = later or {}
      later[#later + 1], later[#later + 2] = format('%d', at), id
      soonest = math.min(soonest or at, at)
      lines[n] = '1\tsent\tscheduled\t' .. stamp .. '\t' .. id .. '\t' .. facts .. '\t0\t\t' .. format('%d', at) .. '\t\t'
    else
      local place = #readied
      readied[place + 1], readied[place + 2] = format('%d', (255 - priority) * SPAN + base + n), id
      lines[n] = lead .. id .. '\t' .. facts .. '\t0\t\t\t\t'
    end
  end
end
if n == 0 then return { 0, unpack(statuses) } end
if max_dead and call('ZCARD', dead) >= max_dead then return refuse('DEADFULL', 'max_dead is ' .. max_dead) end
if max_length then
  local length = call('ZCARD', ready) + call('ZCARD', scheduled) + call('ZCARD', retrying) + call('ZCARD', leased)
  if length + n > max_length then return refuse('FULL', 'max_length is ' .. max_length) end
end

call('HSET', queue, 'sequence', format('%d', base + n), 'sent', format('%d', (tonumber(set[3]) or 0) + n))
write(base, lines, false, bodies)
call('HSET', messages, unpack(bodies))
if careful then
  local m = moves()
  for k = 1, n do
    local _, limits = m.read(bodies[2 * k])
    m.hold_unique(unique, limits, bodies[2 * k - 1], string.find(lines[k], '^1\tsent\tr') and 'r' or 's')
  end
end
if soonest then
  call('ZADD', scheduled, unpack(later))
  if not known or soonest < known then call('HSET', queue, 'due', format('%d', soonest)) end
end
if #readied > 0 then call('ZADD', ready, unpack(readied)) end
if #readied > 0 or (soonest - now <= HORIZON and not (known and known <= soonest)) then
  call('ZADD', marker, '0', '0')
end
if not careful then return base end
return { base, unpack(statuses) }
