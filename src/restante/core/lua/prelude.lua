-- Shared by every verb: the clock, the journal, and the moves that more than one verb makes.
-- A verb reads and checks first, then adds to the new place, then removes from the old: Lua never
-- rolls back, so a failure half way may leave a message in two places but never in none.
-- KEYS[1] queue hash (settings, sequence, totals, due), KEYS[2] journal stream: in every verb.
local call, byte, slice, find, match, format = redis.call, string.byte, string.sub, string.find, string.match, string.format
local queue, journal = KEYS[1], KEYS[2]
local SPAN = 17592186044416 -- 2^44: room for sequence numbers below each priority, exact in a double
local HORIZON = 5000 -- ms a consumer may sleep unasked; what falls due sooner must wake one
local HISTORY = 50 -- attempts remembered per message
local GRAVES = 1000000 -- acked ids kept per generation at most, however long the dedup window
local SLICE = 1000 -- journal lines written between two looks at its length

local function clock()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function refuse(code, text)
  return redis.error_reply('RESTANTE ' .. code .. ' ' .. text)
end

local function whole(text, least, most)
  local n = tonumber(text)
  return n and n == math.floor(n) and n >= least and n <= most and n
end

-- Trims behind the slowest registered reader, never below keep, never beyond cap (the rest is counted lost).
local function trim(last)
  local flat = call('HGETALL', queue)
  local keep, cap, floor, slowest = 100000, 1000000, 0, last
  for i = 1, #flat, 2 do
    local field, value = flat[i], flat[i + 1]
    if field == 'journal_keep' then keep = tonumber(value)
    elseif field == 'journal_cap' then cap = tonumber(value)
    elseif field == 'journal_floor' then floor = tonumber(value)
    elseif slice(field, 1, 7) == 'reader:' then slowest = math.min(slowest, tonumber(value)) end
  end
  local to = math.max(math.min(last - keep, slowest), last - math.max(cap, keep))
  if to <= floor then return end
  if to > slowest then call('HINCRBY', queue, 'journal_lost', to - math.max(slowest, floor)) end
  call('XTRIM', journal, 'MINID', '~', format('0-%.0f', to + 1))
  call('HSET', queue, 'journal_floor', format('%.0f', to))
end

-- Takes n sequence numbers for one kind of event and counts it; returns the number before the first.
local function advance(event, n, total)
  call('HINCRBY', queue, event, total or n)
  return call('HINCRBY', queue, 'sequence', n) - n
end

-- How much the journal keeps (full, terminal, off) and how many sequence numbers it has passed over so far.
local level, skip = 'full', 0
local function open(kept, passed)
  level, skip = kept or 'full', tonumber(passed) or 0
end

-- Writes lines after sequence number base, as one stream entry whose id is the number of its last line.
local function write(base, lines, terminal)
  local n = #lines
  if level ~= 'full' and not (terminal and level == 'terminal') then
    skip = call('HINCRBY', queue, 'journal_skip', n)
    return
  end
  local first = base - skip
  local last = first + n
  call('XADD', journal, '0-' .. last, 'e', n == 1 and lines[1] or table.concat(lines, '\n'))
  if math.floor(last / SLICE) ~= math.floor(first / SLICE) then trim(last) end
end

-- A line of the journal; see journal.py for the columns.
local function line(event, state, now, id, facts, attempts, consumer, due, class, detail)
  return table.concat({ 1, event, state, now, id, facts, attempts, consumer, due, class, detail }, '\t')
end

-- due is a lower bound of the earliest time at which something waits to be moved.
local function lower_due(known, at)
  if not known or at < tonumber(known) then
    call('HSET', queue, 'due', format('%.0f', at))
  end
end

-- The journal's facts about a stored message (sent_at, kind, priority, size) and its limits (lease_ms, max_attempts,
-- unique states, unique key; empty for most); see stored.py for the layout. A damaged one gets empty facts: it must
-- travel to a client, whose checksum finds it and buries it.
local function read(stored)
  local facts, limits = match(stored, '^(%d+\t[^\t\n]*\t%d+\t%d+)\n([^\n]*)\n')
  return facts or '0\t\t0\t0', limits or ''
end

local function priority_of(facts)
  return tonumber(match(facts, '\t(%d+)\t%d+$'))
end

-- A delivery: what changes about a message once it has been received, kept apart from its payload.
-- lease_expires_at (13 digits), token / facts, attempts, consumer / position, received_at, replays / limits
local DELIVERY = '^(%d+) ([^\n]*)\n([^\t]*\t[^\t]*\t[^\t]*\t[^\t]*)\t(%d+)\t([^\n]*)\n([^\t]*)\t([^\t]*)\t([^\n]*)\n(.*)$'
local function parse(text)
  local expires, token, facts, attempts, consumer, score, received, replays, limits = match(text, DELIVERY)
  return { token = token, expires = tonumber(expires), attempts = tonumber(attempts), score = score,
    received = received, consumer = consumer, replays = replays, facts = facts, limits = limits }
end

local function pack(d)
  return format('%013.0f', d.expires) .. ' ' .. d.token .. '\n' .. d.facts .. '\t' .. d.attempts .. '\t' .. d.consumer
    .. '\n' .. d.score .. '\t' .. d.received .. '\t' .. d.replays .. '\n' .. d.limits
end

-- The unique key of a message is held in the states it names and free in all others.
local function hold_unique(unique, limits, id, state)
  if limits == '' then return end
  local states, key = match(limits, '^[^\t]*\t[^\t]*\t([^\t]*)\t(.*)$')
  if not key or key == '' then return end
  if find(states, state, 1, true) then
    call('HSETNX', unique, key, id)
  elseif call('HGET', unique, key) == id then
    call('HDEL', unique, key)
  end
end

-- One line per ended attempt; the oldest give way so that the record stays bounded.
local function remember(history, id, d, now, event, class, text)
  local lines = call('HGET', history, id) or ''
  local _, count = string.gsub(lines, '\n', '\n')
  if count >= HISTORY then lines = string.gsub(lines, '^[^\n]*\n', '', count - HISTORY + 1) end
  call('HSET', history, id, lines .. table.concat({ d.attempts, d.received, now, event, d.consumer, class, text }, '\t')
    .. '\n')
end

-- The delivery behind id if token still holds it by the server's clock, else nil.
local function held(text, token, now)
  if not text or token == '' then return nil end
  local d = parse(text)
  if d.token ~= token or d.expires <= now then return nil end
  return d
end

-- Lets a sleeping consumer learn of a time nearer than the one it knows.
local function wake_by(marker, known, at, now)
  lower_due(known, at)
  if at - now <= HORIZON and not (known and tonumber(known) <= at) then call('ZADD', marker, 0, '0') end
end

-- Removes every trace of messages that end for good; ids is a list.
local function forget(messages, deliveries, history, ids)
  call('HDEL', messages, unpack(ids))
  call('HDEL', deliveries, unpack(ids))
  call('HDEL', history, unpack(ids))
end

-- Keeps acked ids with their tokens for the dedup window, in two generations that turn over by age or size.
local function tombstone(acked, acked_before, window, since, pairs_, base, now)
  window, since = tonumber(window) or 60000, tonumber(since) or 0
  if window == 0 then return end
  local crowded = base % 10000 < #pairs_ and call('HLEN', acked) >= GRAVES
  if crowded or now - since >= window or now < since then
    call('UNLINK', acked_before)
    if now - since < 2 * window and call('EXISTS', acked) == 1 then
      call('RENAME', acked, acked_before)
    else
      call('UNLINK', acked)
    end
    call('HSET', queue, 'acked_since', now)
  end
  call('HSET', acked, unpack(pairs_))
end

-- Drops the oldest kept results beyond the queue's bound.
local function trim_done(k, keep)
  local excess = call('ZCARD', k.done) - keep
  if excess <= 0 then return end
  local ids = call('ZRANGE', k.done, 0, math.min(excess, 200) - 1)
  local given = call('HMGET', k.deliveries, unpack(ids))
  for i = 1, #ids do
    if given[i] then hold_unique(k.unique, parse(given[i]).limits, ids[i], 'g') end
  end
  call('ZREM', k.done, unpack(ids))
  forget(k.messages, k.deliveries, k.history, ids)
end

-- Plans the acks of pairs (id, token) from ARGV[first] on: who is gone, the journal's lines, and who lost the lease.
local function plan_acks(first, now, keep, deliveries, unique, acked, acked_before)
  local ids, gone, lines, graves, lost = {}, {}, {}, {}, {}
  for i = first, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 then return gone, lines, graves, lost end
  local found = call('HMGET', deliveries, unpack(ids))
  local lead, seen, count = '1\tacked\t' .. (keep > 0 and 'done' or 'gone') .. '\t' .. now .. '\t', {}, 0
  for i = 1, #ids do
    local id, given, text = ids[i], ARGV[first + 2 * i - 1], found[i]
    local expires, token, tail
    if text then expires, token, tail = match(text, '^(%d+) ([^\n]+)\n([^\n]*)\n') end
    if token == given and tonumber(expires) > now and not seen[id] then
      seen[id] = true
      count = count + 1
      gone[count] = id
      graves[2 * count - 1], graves[2 * count] = id, token
      lines[count] = lead .. id .. '\t' .. tail .. '\t\t\t'
      if byte(text, -1) ~= 10 then hold_unique(unique, parse(text).limits, id, keep > 0 and 'k' or 'g') end
    elseif not (seen[id] or call('HGET', acked, id) == given or call('HGET', acked_before, id) == given) then
      lost[#lost + 1] = i
    end
  end
  return gone, lines, graves, lost
end

-- Carries planned acks out, after their lines are in the journal.
local function apply_acks(gone, graves, base, now, window, since, keep, k)
  tombstone(k.acked, k.acked_before, window, since, graves, base, now)
  if keep > 0 then
    local scored, given = {}, call('HMGET', k.deliveries, unpack(gone))
    for i = 1, #gone do
      scored[2 * i - 1], scored[2 * i] = now, gone[i]
      local d = parse(given[i])
      d.token, d.expires = '', 0
      call('HSET', k.deliveries, gone[i], pack(d))
    end
    call('ZADD', k.done, unpack(scored))
    call('ZREM', k.leased, unpack(gone))
    trim_done(k, keep)
  else
    call('ZREM', k.leased, unpack(gone))
    forget(k.messages, k.deliveries, k.history, gone)
  end
end

-- Ends an attempt that leaves no more: the message waits among the dead with its reason.
local function to_dead(k, id, d, now, event, class, text)
  remember(k.history, id, d, now, event, class, text)
  d.token, d.expires = '', 0
  call('HSET', k.deliveries, id, pack(d))
  call('ZADD', k.dead, now, id)
  call('ZREM', k.leased, id)
  hold_unique(k.unique, d.limits, id, 'd')
end

local function allowed_attempts(limits, default)
  local own = limits ~= '' and match(limits, '^[^\t]*\t([^\t]*)') or ''
  return tonumber(own ~= '' and own or default) or 5
end

-- An index entry without its payload (somebody removed it by hand) is taken out and said so; true if there was one.
local function drop_orphans(zset, ids, stored, now)
  local orphans, lines = {}, {}
  for i = 1, #ids do
    if not stored[i] then
      orphans[#orphans + 1] = ids[i]
      lines[#lines + 1] = line('deleted', 'gone', now, ids[i], now .. '\t\t0\t0', 0, '', '', 'PayloadMissing', '')
    end
  end
  if #orphans == 0 then return false end
  write(advance('deleted', #orphans), lines, true)
  call('ZREM', zset, unpack(orphans))
  return true
end
