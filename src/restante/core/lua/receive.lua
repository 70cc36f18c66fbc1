-- Settles the acks handed along, promotes what is due, reclaims expired leases, then leases up to n messages.
-- KEYS: queue journal messages deliveries history ready scheduled retrying leased dead done marker unique acked
--       acked_before consumers
-- ARGV: n, nonce, consumer, lease_ms ("" for the queue's), consumer's card ("" for none), then id and token per ack
-- Returns now, due ("" if nothing is), version, promoted, expired, sequence number before the first lease, list of
--         lost acks, then per message: id, attempts, lease_expires_at, stored form.
-- Journal: acked, promoted, expired, received
local k = { messages = KEYS[3], deliveries = KEYS[4], history = KEYS[5], ready = KEYS[6], scheduled = KEYS[7],
  retrying = KEYS[8], leased = KEYS[9], dead = KEYS[10], done = KEYS[11], marker = KEYS[12], unique = KEYS[13],
  acked = KEYS[14], acked_before = KEYS[15], consumers = KEYS[16] }
local n, nonce, consumer, lease, card = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local BATCH = 200 -- messages promoted or reclaimed in one call, so that no call holds the server for long
local set = call('HMGET', queue, 'journal', 'journal_skip', 'due', 'paused', 'lease_ms', 'max_attempts', 'dedup_ms',
  'keep_done', 'version', 'max_leased', 'rate', 'acked_since')
local due = tonumber(set[3])
open(set[1], set[2])
local now = clock()
if not whole(ARGV[1], 0, 1000) then return refuse('INVALID', 'n must be 0 to 1000') end
if lease ~= '' and not whole(lease, 1, 4e12) then return refuse('INVALID', 'lease_ms must be at least 1') end

local lost = {}
if #ARGV > 5 then lost = settle(6, #ARGV, now, set[7], set[12], tonumber(set[8]) or 0, k) end

-- scheduled and retrying become ready in order of due_at; what was delivered before keeps its position.
local function promote(from)
  local ids = call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, BATCH)
  if #ids == 0 then return 0 end
  local stored, given = call('HMGET', k.messages, unpack(ids)), call('HMGET', k.deliveries, unpack(ids))
  if drop_orphans(from, ids, stored, now) then return 0 end
  local base, scored, lines = advance('promoted', #ids), {}, {}
  for i = 1, #ids do
    local d = given[i] and parse(given[i])
    local score = d and d.score or (255 - priority_of(stored[i])) * SPAN + base + i
    scored[2 * i - 1], scored[2 * i] = score, ids[i]
    lines[i] = 'ready\t' .. now .. '\t' .. ids[i] .. '\t' .. facts_of(stored[i]) .. '\t' .. (d and d.attempts or 0)
      .. '\t\t\t\t'
    hold_unique(k.unique, limits_of(stored[i]), ids[i], 'r')
  end
  write('promoted', base, lines, false)
  call('ZADD', k.ready, unpack(scored))
  call('ZREM', from, unpack(ids))
  return #ids
end

-- A lease that ran out is a failed attempt: back to its position, or dead when none is left.
local function reclaim()
  local ids = call('ZRANGEBYSCORE', k.leased, '-inf', now, 'LIMIT', 0, BATCH)
  if #ids == 0 then return 0 end
  local given, base = call('HMGET', k.deliveries, unpack(ids)), advance('expired', #ids)
  for i = 1, #ids do
    local id, d = ids[i], parse(given[i])
    local spent = d.attempts >= allowed_attempts(d.limits, set[6])
    local line = (spent and 'dead' or 'ready') .. '\t' .. now .. '\t' .. id .. '\t' .. d.facts .. '\t' .. d.attempts
      .. '\t' .. d.consumer .. '\t\tLeaseExpired\t'
    write('expired', base + i - 1, { line }, spent)
    if spent then
      to_dead(k, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out on the last attempt"')
    else
      remember(k.history, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out"')
      d.token, d.expires = '', 0
      call('HSET', k.deliveries, id, pack(d))
      call('ZADD', k.ready, d.score, id)
      call('ZREM', k.leased, id)
      hold_unique(k.unique, d.limits, id, 'r')
    end
  end
  return #ids
end

local promoted, expired = 0, 0
if due and due <= now then
  promoted = promote(k.scheduled) + promote(k.retrying)
  expired = reclaim()
  due = nil
  for _, zset in ipairs({ k.scheduled, k.retrying, k.leased }) do
    local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
    if head[2] and (not due or tonumber(head[2]) < due) then due = tonumber(head[2]) end
  end
  if due then call('HSET', queue, 'due', string.format('%.0f', due)) else call('HDEL', queue, 'due') end
end

if card ~= '' then call('HSET', k.consumers, consumer, now .. '\t' .. card) end
if set[4] then n = 0 end
if set[10] and n > 0 then n = math.max(0, math.min(n, tonumber(set[10]) - call('ZCARD', k.leased))) end
local tokens, rate = nil, tonumber(set[11])
if rate and n > 0 then
  local bucket = call('HMGET', queue, 'tokens', 'tokens_at')
  local most = math.max(1, rate)
  tokens = math.min(most, (tonumber(bucket[1]) or most) + math.max(0, now - (tonumber(bucket[2]) or now)) * rate / 1000)
  n = math.min(n, math.floor(tokens))
end

local reply = { now, '', set[9] or '0', promoted, expired, 0, lost }
local found = n > 0 and call('ZRANGE', k.ready, 0, n, 'WITHSCORES') or {}
local took = math.min(n, #found / 2)
if took > 0 then
  local ids = {}
  for i = 1, took do ids[i] = found[2 * i - 1] end
  local stored, given = call('HMGET', k.messages, unpack(ids)), call('HMGET', k.deliveries, unpack(ids))
  if drop_orphans(k.ready, ids, stored, now) then
    reply[2] = string.format('%.0f', now)
    return reply
  end
  local base = advance('received', took)
  local queue_lease = tonumber(lease ~= '' and lease or set[5] or 30000)
  local lines, deliveries, scored = {}, {}, {}
  for i = 1, took do
    local id, body, before = ids[i], stored[i], given[i]
    local facts, limits, attempts, replays, ms = facts_of(body), limits_of(body), 1, '0', queue_lease
    if before then
      local d = parse(before)
      attempts, replays = d.attempts + 1, d.replays
    end
    if limits ~= '' then
      if lease == '' then ms = tonumber(string.match(limits, '^(%d+)')) or ms end
      hold_unique(k.unique, limits, id, 'l')
    end
    local expires = now + ms
    local until_ = string.format('%.0f', expires)
    deliveries[2 * i - 1] = id
    deliveries[2 * i] = (base + i) .. '-' .. nonce .. '\t' .. until_ .. '\t' .. attempts .. '\t' .. found[2 * i] .. '\t'
      .. now .. '\t' .. consumer .. '\t' .. replays .. '\t' .. facts .. '\t' .. limits
    scored[2 * i - 1], scored[2 * i] = until_, id
    lines[i] = 'leased\t' .. now .. '\t' .. id .. '\t' .. facts .. '\t' .. attempts .. '\t' .. consumer .. '\t'
      .. until_ .. '\t\t'
    if not due or expires < due then due = expires end
    local at = 4 + 4 * i
    reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = id, attempts, until_, body
  end
  write('received', base, lines, false)
  call('HSET', k.deliveries, unpack(deliveries))
  call('ZADD', k.leased, unpack(scored))
  call('ZREMRANGEBYRANK', k.ready, 0, took - 1)
  lower_due(set[3], due)
  if tokens then call('HSET', queue, 'tokens', tokens - took, 'tokens_at', now) end
  reply[6] = base
end
if rate and not set[4] and tokens and tokens - took < 1 then
  local refill = now + math.ceil((1 - (tokens - took)) * 1000 / rate)
  if not due or refill < due then due = refill end
end
-- Whoever takes hands on: more is ready, or a time comes soon that nobody else may know of.
if took > 0 and (#found / 2 > took or (due and due - now <= HORIZON)) then call('ZADD', k.marker, 0, '0') end
reply[2] = due and string.format('%.0f', due) or ''
return reply
