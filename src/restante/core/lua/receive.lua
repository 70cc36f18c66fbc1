-- Settles the given acks, promotes due messages, reclaims expired leases, then leases up to n messages.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked
--       acked_before consumers
-- ARGV: n, nonce, consumer, lease_ms ("" for the queue's), the consumer's registry entry ("" for none), then id and
--       token per ack
-- Returns now, due ("" if nothing is), version, promoted, expired, sequence number before the first lease, list of
--         lost acks, then per message: id, attempts (from the second delivery on: attempts, replays and "expired" if
--         the last attempt ended without a verdict), lease_expires_at, stored form.
--         An idle call (nothing ready, due or given) returns 0 for now and for the number.
--         A message that has expired is removed when its turn comes, and not delivered.
-- Journal: acked, promoted, expired, received, deleted
local messages, deliveries, history, ready, scheduled = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local retrying, leased, dead, done, marker, unique = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local acked, acked_before, consumers = KEYS[14], KEYS[15], KEYS[16]
local n, nonce, consumer, lease, presence = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local BATCH = 200 -- messages promoted or reclaimed per call, so that no call blocks the server for long
local set = call('HMGET', queue, 'settings', 'sequence', 'due', 'received', 'acked', 'acked_since', 'journal_skip')
local sequence, due, known = tonumber(set[2]) or 0, tonumber(set[3]), tonumber(set[3])
local version, paused = set[1] or '0', ''
local queue_lease, max_attempts, dedup, keep, max_leased, rate
if #version > 11 then
  version, level, paused, queue_lease, max_attempts, dedup, keep, max_leased, rate = match(version, SETTINGS)
  level = level ~= '' and level or 'full'
end
keep, skip = tonumber(keep) or 0, tonumber(set[7]) or 0
if not due and presence == '' and #ARGV == 5 and call('EXISTS', ready) == 0 then
  return { 0, '', version, 0, 0, 0, {} } -- the reply to an idle consumer
end
local now = clock()
if not n or n < 0 or n > 1000 or n % 1 ~= 0 then return refuse('INVALID', 'n must be 0 to 1000') end
if #ARGV > 2005 then return refuse('INVALID', 'at most 1000 acks') end
if lease ~= '' and not whole(lease, 1, 4e12) then return refuse('INVALID', 'lease_ms must be at least 1') end

local gone, lines, lost, apply = {}, {}, {}, nil
if #ARGV > 5 then
  local plan
  plan, apply = settling()
  gone, lines, lost = plan(6, now, keep, deliveries, unique, acked, acked_before, dedup, set[6], sequence)
end

local promoted, expired, m = 0, 0, nil
if due and due <= now then
  m = moves()
  -- Scheduled and retrying messages become ready in order of due_at; those delivered before keep their position.
  local function promote(from)
    local ids = call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, BATCH)
    if #ids == 0 then return 0 end
    local stored, given = call('HMGET', messages, unpack(ids)), call('HMGET', deliveries, unpack(ids))
    if m.drop_orphans(from, ids, stored, now) then return 0 end
    local base, scored, moved = m.advance('promoted', #ids), {}, {}
    for i = 1, #ids do
      local facts, limits = m.read(stored[i])
      local d = given[i] and m.parse(given[i])
      if not d then
        -- Its position is that of the moment it became ready, and is kept if the message returns.
        d = { token = '', expires = 0, attempts = 0, sequence = format('%d', base + i), received = '', consumer = '',
          replays = '0', facts = facts, limits = limits }
        call('HSET', deliveries, ids[i], m.pack(d))
      end
      scored[2 * i - 1], scored[2 * i] = m.position(facts, d.sequence), ids[i]
      moved[i] = m.line('promoted', 'ready', now, ids[i], facts, d.attempts, '', '', '', '')
      m.hold_unique(unique, limits, ids[i], 'r')
    end
    write(base, moved, false)
    call('ZADD', ready, unpack(scored))
    call('ZREM', from, unpack(ids))
    return #ids
  end

  -- An expired lease is a failed attempt: the message returns to its position, or is dead when no attempt is left.
  local function reclaim()
    local ids = call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, BATCH)
    if #ids == 0 then return 0 end
    local given, base = call('HMGET', deliveries, unpack(ids)), m.advance('expired', #ids)
    local k = { deliveries = deliveries, history = history, dead = dead, leased = leased, unique = unique }
    for i = 1, #ids do
      local id, d = ids[i], m.parse(given[i])
      local spent = d.attempts >= m.allowed_attempts(d.limits, max_attempts)
      write(base + i - 1, { m.line('expired', spent and 'dead' or 'ready', now, id, d.facts, d.attempts, d.consumer, '',
        'LeaseExpired', '') }, spent)
      if spent then
        m.to_dead(k, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out on the last attempt"')
      else
        m.remember(history, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out"')
        d.token, d.expires = '-', 0 -- marks an attempt that ended without a verdict
        call('HSET', deliveries, id, m.pack(d))
        call('ZADD', ready, m.position(d.facts, d.sequence), id)
        call('ZREM', leased, id)
        m.hold_unique(unique, d.limits, id, 'r')
      end
    end
    return #ids
  end

  promoted = promote(scheduled) + promote(retrying)
  expired = reclaim()
  due = nil
  for _, zset in ipairs({ scheduled, retrying, leased }) do
    local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
    if head[2] and (not due or tonumber(head[2]) < due) then due = tonumber(head[2]) end
  end
  call('HSET', queue, 'due', due and format('%d', due) or '')
  known = due
  sequence = tonumber(call('HGET', queue, 'sequence') or 0)
end

if presence ~= '' then call('HSET', consumers, consumer, now .. '\t' .. presence) end
if paused ~= '' then n = 0 end
if tonumber(max_leased) and n > 0 then
  n = math.max(0, math.min(n, max_leased - call('ZCARD', leased) + #gone))
end
local tokens
rate = tonumber(rate)
if rate and n > 0 then
  local bucket = call('HMGET', queue, 'tokens', 'tokens_at')
  if bucket[2] and tonumber(bucket[2]) > now then call('HSET', queue, 'tokens_at', now) end -- the clock went back
  local most = math.max(1, rate)
  tokens = math.min(most, (tonumber(bucket[1]) or most) + math.max(0, now - (tonumber(bucket[2]) or now)) * rate / 1000)
  n = math.min(n, math.floor(tokens))
end

local ids = n > 0 and call('ZRANGE', ready, '0', format('%d', n)) or {}
local took, more = #ids, #ids > n
local stored, given = {}, {}
if more then took, ids[#ids] = n, nil end
if took > 0 then
  stored, given = call('HMGET', messages, unpack(ids)), call('HMGET', deliveries, unpack(ids))
  local orphan = false
  for i = 1, took do orphan = orphan or not stored[i] end
  if orphan then
    m = m or moves()
    m.drop_orphans(ready, ids, stored, now)
    took, more, due = 0, true, now
    sequence = tonumber(call('HGET', queue, 'sequence'))
  end
end

local settled = #gone
local base = sequence + settled
local reply = { now, '', version, promoted, expired, base, lost }
local held_, scored, soonest = {}, {}, now + (tonumber(lease) or tonumber(queue_lease) or 30000)
local stamp, until_ = format('%d', now), format('%013d', soonest)
local lead, given_out, lapsed = '1\treceived\tleased\t' .. stamp .. '\t', 0, nil
for i = 1, took do
  local id, body, over = ids[i], stored[i], false
  local place, facts, limits = match(body, '^(%d+)\n(%d+\t[^\t\n]*\t%d+\t%d+)\n([^\n]*)\n')
  if not facts then
    m = m or moves()
    facts, limits, place = m.read(body)
  end
  local attempts, replays, ends, told = '1', '0', until_, '1'
  if given[i] then
    m = m or moves()
    local d = m.parse(given[i])
    attempts, replays, place = format('%d', d.attempts + 1), d.replays, d.sequence
    told = attempts .. ' ' .. replays .. (d.token == '-' and ' expired' or ' ')
  end
  if limits ~= '' then
    m = m or moves()
    over = replays == '0' and m.is_over(facts, limits, now)
    local own = lease == '' and match(limits, '^(%d+)')
    if own then ends = format('%013d', now + own) end
    m.hold_unique(unique, limits, id, over and 'g' or 'l')
  end
  if over then
    lapsed = lapsed or { ids = {}, lines = {} }
    lapsed.ids[#lapsed.ids + 1] = id
    lapsed.lines[#lapsed.ids] = m.line('deleted', 'gone', stamp, id, facts, format('%d', attempts - 1), '', '', 'Lapsed',
      'ready')
  else
    given_out = given_out + 1
    local w, tail = given_out, facts .. '\t' .. attempts .. '\t' .. consumer
    held_[2 * w - 1] = id
    held_[2 * w] = ends .. ' ' .. format('%d', base + w) .. '-' .. nonce .. '\n' .. tail .. '\n' .. place .. '\t' .. stamp
      .. '\t' .. replays .. '\n' .. limits
    scored[2 * w - 1], scored[2 * w] = ends, id
    lines[settled + w] = lead .. id .. '\t' .. tail .. '\t' .. ends .. '\t\t'
    local at = 4 + 4 * w
    reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = id, told, ends, body
    if ends ~= until_ then soonest = math.min(soonest, tonumber(ends)) end
  end
end
if given_out > 0 then due = math.min(due or soonest, soonest) end
if settled + given_out > 0 then
  call('HSET', queue, 'sequence', format('%d', base + given_out), 'received', format('%d', (tonumber(set[4]) or 0) + given_out),
    'acked', format('%d', (tonumber(set[5]) or 0) + settled))
  if level == 'full' or level == 'payloads' or given_out == 0 then
    write(sequence, lines, given_out == 0)
  else
    local first, rest = {}, {}
    for i = 1, settled + given_out do
      if i <= settled then first[i] = lines[i] else rest[i - settled] = lines[i] end
    end
    if settled > 0 then write(sequence, first, true) end
    write(base, rest, false)
  end
end
if took > 0 then
  if given_out > 0 then
    call('HSET', deliveries, unpack(held_))
    call('ZADD', leased, unpack(scored))
  end
  call('ZREMRANGEBYRANK', ready, '0', format('%d', took - 1))
  if lapsed then
    write(m.advance('deleted', #lapsed.ids), lapsed.lines, true)
    m.forget(messages, deliveries, history, lapsed.ids)
    if more and given_out == 0 then due = now end -- other messages are behind them
  end
  if due ~= known and (not known or due < known) then call('HSET', queue, 'due', format('%d', due)) end
  if tokens then call('HSET', queue, 'tokens', tokens - given_out, 'tokens_at', now) end
end
if settled > 0 then
  apply(gone, now, keep, { messages = messages, deliveries = deliveries, history = history, leased = leased,
    done = done, unique = unique })
end

if rate and paused == '' and tokens and tokens - given_out < 1 then
  local refill = now + math.ceil((1 - (tokens - given_out)) * 1000 / rate)
  if not due or refill < due then due = refill end
end
-- A receive wakes the next consumer if more is ready, or if a due time is near that no other consumer may know of.
if took > 0 and (more or (due and due - now <= HORIZON)) then call('ZADD', marker, '0', '0') end
reply[2] = due and format('%d', due) or ''
return reply
