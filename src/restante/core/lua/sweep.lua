-- Promotes due messages and reclaims expired leases: a part of receive.lua, for the receives that find something due.
-- `k` holds the queue's keys by name.
local call, match, format = redis.call, string.match, string.format
local BATCH = 200 -- messages promoted or reclaimed per call, so that no call blocks the server for long
local m = require('moves')

-- Scheduled and retrying messages become ready in order of due_at; those delivered before keep their position.
local function promote(from, k, now)
  local ids = call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, BATCH)
  if #ids == 0 then return 0 end
  local stored, given = call('HMGET', k.messages, unpack(ids)), call('HMGET', k.deliveries, unpack(ids))
  if m.drop_orphans(from, ids, stored, now) then return 0 end
  local base, scored, moved = m.advance('promoted', #ids), {}, {}
  for i = 1, #ids do
    local facts, limits = m.read(stored[i])
    local d = given[i] and m.parse(given[i])
    if not d then
      -- Its position is that of the moment it became ready, and is kept if the message returns.
      d = { token = '', expires = 0, attempts = 0, sequence = format('%d', base + i), received = '', consumer = '',
        replays = '0', facts = facts, limits = limits }
      call('HSET', k.deliveries, ids[i], m.pack(d))
    end
    scored[2 * i - 1], scored[2 * i] = m.position(facts, d.sequence), ids[i]
    moved[i] = m.line('promoted', 'ready', now, ids[i], facts, d.attempts, '', '', '', '')
    m.hold_unique(k.unique, limits, ids[i], 'r')
  end
  write(base, moved, false)
  call('ZADD', k.ready, unpack(scored))
  call('ZREM', from, unpack(ids))
  return #ids
end

-- An expired lease is a failed attempt: the message returns to its position, or is dead when no attempt is left.
local function reclaim(k, now, max_attempts)
  local ids = call('ZRANGEBYSCORE', k.leased, '-inf', now, 'LIMIT', 0, BATCH)
  if #ids == 0 then return 0 end
  local given, base = call('HMGET', k.deliveries, unpack(ids)), m.advance('expired', #ids)
  for i = 1, #ids do
    local id, d = ids[i], m.parse(given[i])
    local spent = d.attempts >= m.allowed_attempts(d.limits, max_attempts)
    write(base + i - 1, { m.line('expired', spent and 'dead' or 'ready', now, id, d.facts, d.attempts, d.consumer, '',
      'LeaseExpired', '') }, spent)
    if spent then
      m.to_dead(k, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out on the last attempt"')
    else
      m.remember(k.history, id, d, now, 'expired', 'LeaseExpired', '"the lease ran out"')
      d.token, d.expires = '-', 0 -- marks an attempt that ended without a verdict
      call('HSET', k.deliveries, id, m.pack(d))
      call('ZADD', k.ready, m.position(d.facts, d.sequence), id)
      call('ZREM', k.leased, id)
      m.hold_unique(k.unique, d.limits, id, 'r')
    end
  end
  return #ids
end

-- Finds what somebody put into the outbox and did not carry. Announced messages are asked about when it is time.
local function find_noted(k, now)
  local entries = call('ZRANGE', k.outbox, 0, BATCH - 1)
  if #entries == 0 then return nil end
  noted = {}
  for i = 1, #entries do
    local at = match(entries[i], '^%d+\t[^\t]+\tannounced\t(%d+)')
    if not at or tonumber(at) <= now then noted[#noted + 1] = entries[i] end
  end
  return now + m.CARRY_MS
end

-- Stores when the next message or lease is due and returns it, nil if none is.
local function note_next_due(k, now)
  local due = find_noted(k, now)
  for _, zset in ipairs({ k.scheduled, k.retrying, k.leased }) do
    local head = call('ZRANGE', zset, 0, 0, 'WITHSCORES')
    if head[2] and (not due or tonumber(head[2]) < due) then due = tonumber(head[2]) end
  end
  call('HSET', queue, 'due', due and format('%d', due) or '')
  return due
end

return promote, reclaim, note_next_due
