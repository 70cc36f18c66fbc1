-- Stores messages, each ready or scheduled; a message id seen before changes nothing.
-- KEYS: queue journal messages ready scheduled marker unique acked acked_before leased retrying dead
-- ARGV: "1" if an id may have been sent before, then per message: id, due ("" now, "+ms" from now, "ms"), priority,
--       stored form without sent_at
-- Returns the sequence number before the first; with repeats or unique keys a list: that number, then per message
--         "" if stored or the id of the message that already stands for it.
-- Journal: sent
local messages, ready, scheduled, marker, unique = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local acked, acked_before, leased, retrying, dead = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local careful, argc = ARGV[1] == '1', #ARGV
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due', 'max_length', 'max_dead', 'max_payload_bytes', 'sequence',
  'sent')
local due_hint = set[3]
open(set[1], set[2])
local now = clock()
if (argc - 1) % 4 ~= 0 then return refuse('INVALID', 'a message takes four arguments') end

local longest = tonumber(set[6])
for i = 2, argc, 4 do
  local due = ARGV[i + 1]
  if due ~= '' and not whole(due, 0, 4e15) then return refuse('INVALID', 'due is not a whole number of milliseconds') end
  if not whole(ARGV[i + 2], 0, 255) then return refuse('INVALID', 'priority must be 0 to 255') end
  local size = match(ARGV[i + 3], '^[^\t\n]*\t%d+\t(%d+)\n[^\n]*\n')
  if not size then return refuse('INVALID', 'the stored form does not begin with facts and limits') end
  if longest and tonumber(size) > longest then return refuse('TOOLARGE', 'max_payload_bytes is ' .. set[6]) end
end
local function full(n)
  if set[5] and call('ZCARD', dead) >= tonumber(set[5]) then return refuse('DEADFULL', 'max_dead is ' .. set[5]) end
  if set[4] then
    local length = call('ZCARD', ready) + call('ZCARD', scheduled) + call('ZCARD', retrying) + call('ZCARD', leased)
    if length + n > tonumber(set[4]) then return refuse('FULL', 'max_length is ' .. set[4]) end
  end
end

local statuses, stored, seen = {}, {}, {}
if careful then
  local ids = {}
  for i = 2, argc, 4 do ids[#ids + 1] = ARGV[i] end
  local old, gone, gone_before = call('HMGET', messages, unpack(ids)), call('HMGET', acked, unpack(ids)),
    call('HMGET', acked_before, unpack(ids))
  for i = 2, argc, 4 do
    local k, id, holder = (i + 2) / 4, ARGV[i], nil
    if seen[id] or old[k] or gone[k] or gone_before[k] then
      holder = id
    else
      local states, key = match(ARGV[i + 3], '^[^\n]*\n[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t([^\n]*)\n')
      if key and key ~= '' then
        local first = ARGV[i + 1] == '' and 'r' or 's'
        holder = seen[key .. '\t'] or call('HGET', unique, key) or nil
        if not holder and find(states, first, 1, true) then seen[key .. '\t'] = id end
      end
      seen[id] = true
    end
    statuses[k] = holder or ''
    if not holder then stored[#stored + 1] = i end
  end
else
  for i = 2, argc, 4 do stored[#stored + 1] = i end
end
local n = #stored
if n == 0 then return { 0, unpack(statuses) } end
local refusal = full(n)
if refusal then return refusal end

local base = tonumber(set[7]) or 0
local stamp, lead = now .. '\t', '1\tsent\tready\t' .. now .. '\t'
local lines, bodies, states, now_ready, later, soonest = {}, {}, {}, {}, {}, nil
for k = 1, n do
  local i = stored[k]
  local id, due, body = ARGV[i], ARGV[i + 1], stamp .. ARGV[i + 3]
  local facts = match(body, '^[^\n]*')
  bodies[2 * k - 1], bodies[2 * k] = id, body
  local at = now
  if due ~= '' then at = byte(due) == 43 and now + tonumber(due) or tonumber(due) end
  states[k] = at > now and 's' or 'r'
  if at > now then
    later[#later + 1], later[#later + 2] = at, id
    if not soonest or at < soonest then soonest = at end
    lines[k] = line('sent', 'scheduled', now, id, facts, 0, '', format('%.0f', at), '', '')
  else
    now_ready[#now_ready + 1], now_ready[#now_ready + 2] = (255 - ARGV[i + 2]) * SPAN + base + k, id
    lines[k] = lead .. id .. '\t' .. facts .. '\t0\t\t\t\t'
  end
end
call('HSET', queue, 'sequence', base + n, 'sent', (tonumber(set[8]) or 0) + n)
write(base, lines, false)
call('HSET', messages, unpack(bodies))
for k = 1, careful and n or 0 do
  local id, body = bodies[2 * k - 1], bodies[2 * k]
  local _, limits = read(body)
  hold_unique(unique, limits, id, states[k])
end
if #later > 0 then
  call('ZADD', scheduled, unpack(later))
  lower_due(due_hint, soonest)
end
if #now_ready > 0 then call('ZADD', ready, unpack(now_ready)) end
if #now_ready > 0 or (soonest - now <= HORIZON and not (due_hint and tonumber(due_hint) <= soonest)) then
  call('ZADD', marker, 0, '0')
end
if not careful then return base end
return { base, unpack(statuses) }
