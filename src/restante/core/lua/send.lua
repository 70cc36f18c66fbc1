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
local packed, sequence, total_sent, due_hint, skipped, acked_since = unpack(call('HMGET', queue, 'settings', 'sequence',
  'sent', 'due', 'journal_skip', 'acked_since'))
local set, base, known_due = read_settings(packed), tonumber(sequence) or 0, tonumber(due_hint)
local max_length, max_dead = set.max_length and tonumber(set.max_length), set.max_dead and tonumber(set.max_dead)
local longest = set.max_payload_bytes and tonumber(set.max_payload_bytes)
skip = tonumber(skipped) or 0
local now, part = clock()
if (argc - 1) % 4 ~= 0 then return refuse('INVALID', 'a message takes four arguments') end
if (careful or max_length or max_dead) and not dead then return refuse('KEYS', 'every key is needed here') end

local statuses, holder_of, k, window, age
if careful then
  statuses, holder_of = {}, require('repeats')
  k = { messages = messages, unique = unique, acked = acked, acked_before = acked_before }
  window, age = tonumber(set.dedup_ms) or 60000, now - (tonumber(acked_since) or 0)
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
  local holder = careful and holder_of(id, form, at > now and 's' or 'r', k, window, age)
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
      lines[n] = '1\tsent\tscheduled\t' .. stamp .. '\t' .. id .. '\t' .. facts .. '\t0\t\t' .. format('%d', at)
        .. '\t\t'
    else
      local place = #readied
      readied[place + 1], readied[place + 2] = format('%d', (255 - priority) * SPAN + base + n), id
      lines[n] = lead .. id .. '\t' .. facts .. '\t0\t\t\t\t'
    end
    local batch = careful and match(form, '^[^\n]*\n[^\t\n]*\t[^\t\n]*\t[^\t\n]*\t[^\t\n]*\t([^\n]+)\n')
    if batch then lines[n] = lines[n] .. 'batch ' .. batch end
  end
end
if n == 0 then return { 0, unpack(statuses) } end
if max_dead and call('ZCARD', dead) >= max_dead then return refuse('DEADFULL', 'max_dead is ' .. max_dead) end
if max_length then
  local length = call('ZCARD', ready) + call('ZCARD', scheduled) + call('ZCARD', retrying) + call('ZCARD', leased)
  if length + n > max_length then return refuse('FULL', 'max_length is ' .. max_length) end
end

call('HSET', queue, 'sequence', format('%d', base + n), 'sent', format('%d', (tonumber(total_sent) or 0) + n))
write(base, lines, false, bodies)
call('HSET', messages, unpack(bodies))
if careful then
  local m = require('moves')
  for i = 1, n do
    local _, limits = m.read(bodies[2 * i])
    m.hold_unique(unique, limits, bodies[2 * i - 1], string.find(lines[i], '^1\tsent\tr') and 'r' or 's')
  end
end
if soonest then
  call('ZADD', scheduled, unpack(later))
  if not known_due or soonest < known_due then call('HSET', queue, 'due', format('%d', soonest)) end
end
if #readied > 0 then call('ZADD', ready, unpack(readied)) end
if #readied > 0 or (soonest - now <= HORIZON and not (known_due and known_due <= soonest)) then
  call('ZADD', marker, '0', '0')
end
if not careful then return base end
return { base, unpack(statuses) }
