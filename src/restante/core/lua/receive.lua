-- Settles the given acks, promotes due messages, reclaims expired leases, then leases up to n messages.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked
--       acked_before consumers outbox groups held waits
-- ARGV: n, nonce, consumer, lease_ms ("" for the queue's), the consumer's registry entry ("" for none), then id and
--       token per ack
-- Returns now, due ("" if nothing is), version, promoted, expired, sequence number before the first lease, list of
--         lost acks (followed as in ack), then per message: id, attempts (from the second delivery on: attempts, replays
--         and "expired" if the last attempt ended without a verdict), lease_expires_at, stored form.
--         An idle call (nothing ready, due or given) returns 0 for now and for the number.
--         A message that has expired is removed when its turn comes, and not delivered.
-- Journal: acked, promoted, expired, received, deleted
-- The loop that leases the messages stays here, with all it needs in locals: as a function it cost a receive of one
-- message 3 to 7 % more server time, or a dozen arguments in a row and still 4 % on Redis. What few receives do is in
-- sweep.lua and limits.lua, what those of queues with groups do in turns.lua, groups.lua and choosing.lua.
local messages, deliveries, history, ready, scheduled = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local retrying, leased, dead, done, marker, unique = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local acked, acked_before, consumers, outbox = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local groups, held, waits = KEYS[18], KEYS[19], KEYS[20]
local n, nonce, consumer, lease_ms, presence, first_ack = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5], 6
local packed, sequence, due, total_received, total_acked, acked_since, skipped = unpack(call('HMGET', queue, 'settings',
  'sequence', 'due', 'received', 'acked', 'acked_since', 'journal_skip'))
local set, known_due = read_settings(packed), tonumber(due)
sequence, due, skip = tonumber(sequence) or 0, known_due, tonumber(skipped) or 0
if not due and presence == '' and #ARGV < first_ack and call('EXISTS', ready) == 0 then
  return { 0, '', set.version, 0, 0, 0, {} } -- the reply to an idle consumer
end
local now = clock()
if not n or n < 0 or n > 1000 or n % 1 ~= 0 then return refuse('INVALID', 'n must be 0 to 1000') end
if #ARGV > 2005 then return refuse('INVALID', 'at most 1000 acks') end
if lease_ms ~= '' and not whole(lease_ms, 1, 4e12) then return refuse('INVALID', 'lease_ms must be at least 1') end

local gone, lines, lost, apply, freed = {}, {}, {}, nil, nil
local keep = tonumber(set.keep_done) or 0
if #ARGV >= first_ack then
  local plan
  plan, apply = require('settling')
  gone, lines, lost, freed = plan(first_ack, now, keep, deliveries, unique, acked, acked_before, set.dedup_ms,
    acked_since, sequence, outbox)
end

-- Whether the queue has had messages with groups, and whether they have limits, so that the book is needed.
local since, most, rate, paused = match(set.groups or '', '^(%d+);([^;]*);([^;]*);([^;]*)')
local part, book
local function open_book()
  part = part or require('groups')
  book = book or part.open_book({ groups = groups, held = held, ready = ready, waits = waits }, set.groups)
end
if since and (freed or most ~= '' or rate ~= '' or (paused ~= '' and paused ~= '0')) then
  open_book()
  if freed then
    part.load_fields(book, freed, {}, {})
    for i = 1, #freed do part.shift(book, freed[i], nil, 'l') end
  end
end

local promoted, expired = 0, 0
if due and due <= now then
  if since then open_book() end
  local promote, reclaim, note_next_due = require('sweep')
  local k = { messages = messages, deliveries = deliveries, history = history, ready = ready, scheduled = scheduled,
    retrying = retrying, leased = leased, dead = dead, unique = unique, outbox = outbox, waits = waits, book = book,
    groups_part = part }
  promoted = promote(scheduled, k, now) + promote(retrying, k, now)
  expired = reclaim(k, now, set.max_attempts)
  if book then
    part.look_again(book, now)
    k.looking = part.look_through(book) and now or nil
  end
  due = note_next_due(k, now)
  known_due = due
  sequence = tonumber(call('HGET', queue, 'sequence') or 0)
end

local came = 0
if book then came = part.close_book(book) end

if presence ~= '' then call('HSET', consumers, consumer, now .. '\t' .. presence) end
local settled, tokens = #gone, nil
if set.pause then -- not all settings are defaults
  local allowed = require('limits')
  n, tokens = allowed(n, set, leased, settled, now)
end
local ids, took, more, bodies, given, back, m = {}, 0, false, {}, {}, 0, nil
local limited = book and (book.most or book.rate or book.paused > 0)
if limited then
  if n > 0 then
    m = require('moves')
    local choose, dropped = require('choosing'), nil
    ids, bodies, given, more, back, dropped = choose(book, part, m, n, { messages = messages, deliveries = deliveries,
      ready = ready, held = held }, now)
    took = #ids
    if dropped then sequence = tonumber(call('HGET', queue, 'sequence')) end
  end
  if took == 0 and more then due = now end -- there may be others behind what was held back
else
  ids = n > 0 and call('ZRANGE', ready, '0', format('%d', n)) or {}
  took, more = #ids, #ids > n
  if more then took, ids[#ids] = n, nil end
  if took > 0 then
    bodies, given = call('HMGET', messages, unpack(ids)), call('HMGET', deliveries, unpack(ids))
    local orphan = false
    for i = 1, took do orphan = orphan or not bodies[i] end
    if orphan then
      require('moves').drop_orphans(ready, ids, bodies, now)
      ids, took, more, due = {}, 0, true, now
      sequence = tonumber(call('HGET', queue, 'sequence'))
    end
  end
end

local base, count, lapsed, lapsed_lines = sequence + settled, 0, nil, nil
local reply, filled = { now, '', set.version, promoted, expired, base, lost, nil, nil, nil, nil }, 7 -- and room for one
local soonest = now + (tonumber(lease_ms) or tonumber(set.lease_ms) or 30000)
local stamp, usual_end = format('%d', now), format('%013d', soonest)
local lead = '1\treceived\tleased\t' .. stamp .. '\t'
local lead_of_groups = since and '2' .. string.sub(lead, 2)
local named, lanes, tops, mark = {}, since and not limited and {}, {}, limited and book.most and '\t*' or ''
local leases, scored = { nil, nil }, { nil, nil } -- room for one message: most receives take one, and growing costs
for i = 1, took do
  local id, body, over = ids[i], bodies[i], false
  local place, facts, limits, priority
  if lanes then
    place, facts, priority, limits = match(body, '^(%d+)\n(%d+\t[^\t\n]*\t(%d+)\t%d+)\n([^\n]*)\n')
  else
    place, facts, limits = match(body, '^(%d+)\n(%d+\t[^\t\n]*\t%d+\t%d+)\n([^\n]*)\n')
  end
  if not facts then
    m = m or require('moves')
    facts, limits, place = m.read(body)
  end
  local attempts, replays, expires_at, tried = '1', '0', usual_end, '1'
  if given[i] then
    m = m or require('moves')
    local d = m.parse(given[i])
    attempts, replays, place = format('%d', d.attempts + 1), d.replays, d.sequence
    tried = attempts .. ' ' .. replays .. (d.token == '-' and ' expired' or ' ')
  end
  local group
  if limits ~= '' and match(limits, '^\t\t\t\t[^\t]+$') then
    group = string.sub(limits, 5) -- most messages with limits have only a group
  elseif limits ~= '' then
    m = m or require('moves')
    group = m.group_of(limits)
    over = replays == '0' and m.is_over(facts, limits, now)
    local own = lease_ms == '' and match(limits, '^(%d+)')
    if own then expires_at = format('%013d', now + own) end
    m.hold_unique(unique, limits, id, over and 'g' or 'l')
  end
  if priority then
    tops[priority] = place -- in the order of `ready`, the last one is the highest
    if group then
      local lane = priority .. '\t' .. group
      local before = lanes[lane]
      if not before then named[#named + 1] = lane end
      lanes[lane] = (before or 0) + 1
    end
  end
  if over then
    lapsed, lapsed_lines = lapsed or {}, lapsed_lines or {}
    lapsed[#lapsed + 1] = id
    m.note(outbox, limits, id, 'lapsed', 'Lapsed', now, base + i)
    lapsed_lines[#lapsed] = m.line('deleted', 'gone', stamp, id, facts, format('%d', attempts - 1), '', '', 'Lapsed',
      'ready', limits)
    if group and limited and book.most then part.shift(book, group, nil, 'l') end
  else
    count = count + 1
    local tail = facts .. '\t' .. attempts .. '\t' .. consumer
    leases[2 * count - 1] = id
    leases[2 * count] = expires_at .. ' ' .. format('%d', base + count) .. '-' .. nonce .. '\n' .. tail .. '\n' .. place
      .. '\t' .. stamp .. '\t' .. replays .. '\n' .. limits .. (group and mark or '')
    scored[2 * count - 1], scored[2 * count] = expires_at, id
    if group then
      lines[settled + count] = lead_of_groups .. id .. '\t' .. tail .. '\t' .. expires_at .. '\t\t\t' .. group
    else
      lines[settled + count] = lead .. id .. '\t' .. tail .. '\t' .. expires_at .. '\t\t'
    end
    reply[filled + 1], reply[filled + 2], reply[filled + 3], reply[filled + 4] = id, tried, expires_at, body
    filled = filled + 4
    if expires_at ~= usual_end then soonest = math.min(soonest, tonumber(expires_at)) end
  end
end

if count > 0 then due = math.min(due or soonest, soonest) end
if noted then
  m = m or require('moves')
  due, reply[7] = math.min(due or now + m.CARRY_MS, now + m.CARRY_MS), m.with_noted(lost)
end
if settled + count > 0 then
  call('HSET', queue, 'sequence', format('%d', base + count),
    'received', format('%d', (tonumber(total_received) or 0) + count),
    'acked', format('%d', (tonumber(total_acked) or 0) + settled))
  if level == 'full' or level == 'payloads' or count == 0 then
    write(sequence, lines, count == 0)
  else
    if settled > 0 then write(sequence, { unpack(lines, 1, settled) }, true) end
    write(base, { unpack(lines, settled + 1) }, false)
  end
end
if took > 0 then
  if count > 0 then
    call('HSET', deliveries, unpack(leases))
    call('ZADD', leased, unpack(scored))
  end
  call('ZREMRANGEBYRANK', ready, '0', format('%d', took - 1))
  if lapsed then
    write(m.advance('deleted', #lapsed), lapsed_lines, true)
    m.forget(messages, deliveries, history, lapsed)
    if more and count == 0 then due = now end -- other messages are behind them
  end
  if due ~= known_due and (not known_due or due < known_due) then call('HSET', queue, 'due', format('%d', due)) end
  if tokens then call('HSET', queue, 'tokens', tokens - count, 'tokens_at', now) end
end
if lanes and took > 0 then
  local take = require('turns')
  take(groups, tonumber(since), named, lanes, tops)
end
if book then
  if book.soonest and (not due or book.soonest < due) then due = book.soonest end
  if due and (not known_due or due < known_due) then call('HSET', queue, 'due', format('%d', due)) end
  local others = part.close_book(book) -- an expired message has made room for them
  if others > 0 and count == 0 then due = now end
  came = came + others
  if back > 0 or came > 0 then call('ZADD', marker, '0', '0') end
end
if settled > 0 then
  apply(gone, now, keep, { messages = messages, deliveries = deliveries, history = history, leased = leased,
    done = done, unique = unique })
end
if tokens and tokens - count < 1 then
  local refill = now + math.ceil((1 - (tokens - count)) * 1000 / set.rate)
  if not due or refill < due then due = refill end
end
-- A receive wakes the next consumer if more is ready, or if a due time is near that no other consumer may know of.
if took > 0 and (more or (due and due - now <= HORIZON)) then call('ZADD', marker, '0', '0') end
reply[2] = due and format('%d', due) or ''
return reply
