-- Settles the acks handed along, promotes what is due, reclaims expired leases, then leases up to n messages.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked
--       acked_before consumers
-- ARGV: n, nonce, consumer, lease_ms ("" for the queue's), consumer's card ("" for none), then id and token per ack
-- Returns now, due ("" if nothing is), version, promoted, expired, sequence number before the first lease, list of
--         lost acks, then per message: id, attempts, lease_expires_at, stored form.
-- Journal: acked, promoted, expired, received
local messages, deliveries, history, ready, scheduled = KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local retrying, leased, dead, done, marker, unique = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local acked, acked_before, consumers = KEYS[14], KEYS[15], KEYS[16]
local n, nonce, consumer, lease, card = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local BATCH = 200 -- messages promoted or reclaimed in one call, so that no call holds the server for long
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due', 'paused', 'lease_ms', 'max_attempts', 'dedup_ms',
  'keep_done', 'version', 'max_leased', 'rate', 'acked_since', 'sequence', 'received', 'acked')
local due, known, keep = tonumber(set[3]), set[3], tonumber(set[8]) or 0
local sequence = tonumber(set[13]) or 0
open(set[1], set[2])
local now = clock()
if not whole(ARGV[1], 0, 1000) then return refuse('INVALID', 'n must be 0 to 1000') end
if lease ~= '' and not whole(lease, 1, 4e12) then return refuse('INVALID', 'lease_ms must be at least 1') end
local gone, lines, graves, lost = plan_acks(6, now, keep, deliveries, unique, acked, acked_before)

-- scheduled and retrying become ready in order of due_at; what was delivered before keeps its position.
local function promote(from)
  local ids = call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, BATCH)
  if #ids == 0 then return 0 end
  local stored, given = call('HMGET', messages, unpack(ids)), call('HMGET', deliveries, unpack(ids))
  if drop_orphans(from, ids, stored, now) then return 0 end
  local base, scored, moved = advance('promoted', #ids), {}, {}
  for i = 1, #ids do
    local facts, limits = read(stored[i])
    local d = given[i] and parse(given[i])
    scored[2 * i - 1] = d and d.score or (255 - priority_of(facts)) * SPAN + base + i
    scored[2 * i] = ids[i]
    moved[i] = line('promoted', 'ready', now, ids[i], facts, d and d.attempts or 0, '', '', '', '')
    hold_unique(unique, limits, ids[i], 'r')
  end
  write(base, moved, false)
  call('ZADD', ready, unpack(scored))
  call('ZREM', from, unpack(ids))
  return #ids
end

-- A lease that ran out is a failed attempt: back to its position, or dead when none is left.
local function reclaim()
  local ids = call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, BATCH)
  if #ids == 0 then return 0 end
  local given, base = call('HMGET', deliveries, unpack(ids)), advance('expired', #ids)
  local k = { deliveries = deliveries, history = history, dead = dead, leased = leased, unique = unique }
  for i = 1, #ids do
    local id, d = ids[i], parse(given[i])
    local spent = d.attempts >= allowed_attempts(d.limits, set[6])
    write(base + i - 1, { line('expired', spent and 'dead' or 'ready', now, id, d.facts, d.attempts, d.consumer, '',
      'LeaseExpired', '') }, spent)
    if spent then
      to_dead(k, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out on the last attempt"')
    else
      remember(history, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out"')
      d.token, d.expires = '', 0
      call('HSET', deliveries, id, pack(d))
      call('ZADD', ready, d.score, id)
      call('ZREM', leased, id)
      hold_unique(unique, d.limits, id, 'r')
    end
  end
  return #ids
end

local promoted, expired = 0, 0
if due and due <= now then
  promoted = promote(scheduled) + promote(retrying)
  expired = reclaim()
  due = nil
  for _, zset in ipairs({ scheduled, retrying, leased }) do
    local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
    if head[2] and (not due or tonumber(head[2]) < due) then due = tonumber(head[2]) end
  end
  if due then call('HSET', queue, 'due', format('%.0f', due)) else call('HDEL', queue, 'due') end
  known = due
  sequence = tonumber(call('HGET', queue, 'sequence') or 0)
end

if card ~= '' then call('HSET', consumers, consumer, now .. '\t' .. card) end
if set[4] then n = 0 end
if set[10] and n > 0 then
  n = math.max(0, math.min(n, tonumber(set[10]) - call('ZCARD', leased) + #gone))
end
local tokens, rate = nil, tonumber(set[11])
if rate and n > 0 then
  local bucket = call('HMGET', queue, 'tokens', 'tokens_at')
  local most = math.max(1, rate)
  tokens = math.min(most, (tonumber(bucket[1]) or most) + math.max(0, now - (tonumber(bucket[2]) or now)) * rate / 1000)
  n = math.min(n, math.floor(tokens))
end

local found = n > 0 and call('ZRANGE', ready, 0, n, 'WITHSCORES') or {}
local took, more = math.min(n, #found / 2), #found / 2 > n
local ids, stored, given = {}, {}, {}
if took > 0 then
  for i = 1, took do ids[i] = found[2 * i - 1] end
  stored, given = call('HMGET', messages, unpack(ids)), call('HMGET', deliveries, unpack(ids))
  if drop_orphans(ready, ids, stored, now) then
    took, more, due = 0, true, now
    sequence = tonumber(call('HGET', queue, 'sequence'))
  end
end

local settled = #gone
local base = sequence + settled
local reply = { now, '', set[9] or '0', promoted, expired, base, lost }
local held_, scored = {}, {}
local default = tonumber(lease ~= '' and lease or set[5] or 30000)
local until_ = format('%013.0f', now + default)
local lead = '1\treceived\tleased\t' .. now .. '\t'
local received = '\t' .. now .. '\t'
for i = 1, took do
  local id, body = ids[i], stored[i]
  local facts, limits = read(body)
  local attempts, replays, ends = 1, '0', until_
  if given[i] then
    local d = parse(given[i])
    attempts, replays = d.attempts + 1, d.replays
  end
  if limits ~= '' then
    local own = lease == '' and match(limits, '^(%d+)')
    if own then ends = format('%013.0f', now + own) end
    hold_unique(unique, limits, id, 'l')
  end
  local tail = facts .. '\t' .. attempts .. '\t' .. consumer
  held_[2 * i - 1] = id
  held_[2 * i] = ends .. ' ' .. (base + i) .. '-' .. nonce .. '\n' .. tail .. '\n' .. found[2 * i] .. received
    .. replays .. '\n' .. limits
  scored[2 * i - 1], scored[2 * i] = ends, id
  lines[settled + i] = lead .. id .. '\t' .. tail .. '\t' .. ends .. '\t\t'
  local at = 4 + 4 * i
  reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = id, attempts, ends, body
  local expires = tonumber(ends)
  if not due or expires < due then due = expires end
end
if settled + took > 0 then
  call('HSET', queue, 'sequence', base + took, 'received', (tonumber(set[14]) or 0) + took,
    'acked', (tonumber(set[15]) or 0) + settled)
  if level == 'full' or took == 0 then
    write(sequence, lines, took == 0)
  else
    local first, rest = {}, {}
    for i = 1, settled + took do
      if i <= settled then first[i] = lines[i] else rest[i - settled] = lines[i] end
    end
    if settled > 0 then write(sequence, first, true) end
    write(base, rest, false)
  end
end
if took > 0 then
  call('HSET', deliveries, unpack(held_))
  call('ZADD', leased, unpack(scored))
  call('ZREMRANGEBYRANK', ready, 0, took - 1)
  lower_due(known, due)
  if tokens then call('HSET', queue, 'tokens', tokens - took, 'tokens_at', now) end
end
if settled > 0 then
  apply_acks(gone, graves, sequence, now, set[7], set[12], keep, { messages = messages, deliveries = deliveries,
    history = history, leased = leased, done = done, unique = unique, acked = acked, acked_before = acked_before })
end

if rate and not set[4] and tokens and tokens - took < 1 then
  local refill = now + math.ceil((1 - (tokens - took)) * 1000 / rate)
  if not due or refill < due then due = refill end
end
-- Whoever takes hands on: more is ready, or a time comes soon that nobody else may know of.
if took > 0 and (more or (due and due - now <= HORIZON)) then call('ZADD', marker, 0, '0') end
reply[2] = due and format('%.0f', due) or ''
return reply
