-- Settles the given acks, promotes due messages, reclaims expired leases, then leases up to n messages.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked
--       acked_before consumers outbox
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
-- sweep.lua and limits.lua.
local messages, deliveries, history, ready, scheduled = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local retrying, leased, dead, done, marker, unique = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local acked, acked_before, consumers, outbox = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
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

local gone, lines, lost, apply = {}, {}, {}, nil
local keep = tonumber(set.keep_done) or 0
if #ARGV >= first_ack then
  local plan
  plan, apply = require('settling')
  gone, lines, lost = plan(first_ack, now, keep, deliveries, unique, acked, acked_before, set.dedup_ms, acked_since,
    sequence, outbox)
end

local promoted, expired = 0, 0
if due and due <= now then
  local promote, reclaim, note_next_due = require('sweep')
  local k = { messages = messages, deliveries = deliveries, history = history, ready = ready, scheduled = scheduled,
    retrying = retrying, leased = leased, dead = dead, unique = unique, outbox = outbox }
  promoted = promote(scheduled, k, now) + promote(retrying, k, now)
  expired = reclaim(k, now, set.max_attempts)
  due = note_next_due(k, now)
  known_due = due
  sequence = tonumber(call('HGET', queue, 'sequence') or 0)
end

if presence ~= '' then call('HSET', consumers, consumer, now .. '\t' .. presence) end
local settled, tokens = #gone, nil
if set.pause then -- not all settings are defaults
  local allowed = require('limits')
  n, tokens = allowed(n, set, leased, settled, now)
end
local ids = n > 0 and call('ZRANGE', ready, '0', format('%d', n)) or {}
local took, more = #ids, #ids > n
local bodies, given = {}, {}
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

local base, count, lapsed, lapsed_lines, m = sequence + settled, 0, nil, nil, nil
local reply, filled = { now, '', set.version, promoted, expired, base, lost, nil, nil, nil, nil }, 7 -- and room for one
local soonest = now + (tonumber(lease_ms) or tonumber(set.lease_ms) or 30000)
local stamp, usual_end = format('%d', now), format('%013d', soonest)
local lead = '1\treceived\tleased\t' .. stamp .. '\t'
local leases, scored = { nil, nil }, { nil, nil } -- room for one message: most receives take one, and growing costs
for i = 1, took do
  local id, body, over = ids[i], bodies[i], false
  local place, facts, limits = match(body, '^(%d+)\n(%d+\t[^\t\n]*\t%d+\t%d+)\n([^\n]*)\n')
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
  if limits ~= '' then
    m = m or require('moves')
    over = replays == '0' and m.is_over(facts, limits, now)
    local own = lease_ms == '' and match(limits, '^(%d+)')
    if own then expires_at = format('%013d', now + own) end
    m.hold_unique(unique, limits, id, over and 'g' or 'l')
  end
  if over then
    lapsed, lapsed_lines = lapsed or {}, lapsed_lines or {}
    lapsed[#lapsed + 1] = id
    m.note(outbox, limits, id, 'lapsed', 'Lapsed', now, base + i)
    lapsed_lines[#lapsed] = m.line('deleted', 'gone', stamp, id, facts, format('%d', attempts - 1), '', '', 'Lapsed',
      'ready')
  else
    count = count + 1
    local tail = facts .. '\t' .. attempts .. '\t' .. consumer
    leases[2 * count - 1] = id
    leases[2 * count] = expires_at .. ' ' .. format('%d', base + count) .. '-' .. nonce .. '\n' .. tail .. '\n' .. place
      .. '\t' .. stamp .. '\t' .. replays .. '\n' .. limits
    scored[2 * count - 1], scored[2 * count] = expires_at, id
    lines[settled + count] = lead .. id .. '\t' .. tail .. '\t' .. expires_at .. '\t\t'
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
