-- Shared by every verb: the clock, the journal, and the moves that more than one verb makes.
-- A verb reads and checks first, then adds to the new place, then removes from the old: Lua never
-- rolls back, so a failure half way may leave a message in two places but never in none.
-- KEYS[1] queue hash (settings, sequence, totals, due), KEYS[2] journal stream: in every verb.
local call = redis.call
local queue, journal = KEYS[1], KEYS[2]
local SPAN = 17592186044416 -- 2^44: room for sequence numbers below each priority, exact in a double
local HORIZON = 5000 -- ms a consumer may sleep unasked; what falls due sooner must wake one
local HISTORY = 50 -- attempts remembered per message
local GRAVES = 1000000 -- acked ids kept per generation at most, however long the dedup window
local SLICE = 1000 -- journal entries written between two looks at its length

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
    elseif string.sub(field, 1, 7) == 'reader:' then slowest = math.min(slowest, tonumber(value)) end
  end
  local to = math.max(math.min(last - keep, slowest), last - math.max(cap, keep))
  if to <= floor then return end
  if to > slowest then call('HINCRBY', queue, 'journal_lost', to - math.max(slowest, floor)) end
  call('XTRIM', journal, 'MINID', '~', string.format('0-%.0f', to + 1))
  call('HSET', queue, 'journal_floor', string.format('%.0f', to))
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

-- Writes lines (already tab separated, without version and event) after sequence number base.
local function write(event, base, lines, terminal)
  local n = #lines
  if level ~= 'full' and not (terminal and level == 'terminal') then
    skip = call('HINCRBY', queue, 'journal_skip', n)
    return
  end
  local first = base - skip
  local lead = '1\t' .. event .. '\t'
  for i = 1, n do
    call('XADD', journal, string.format('0-%.0f', first + i), 'e', lead .. lines[i])
  end
  local last = first + n
  if math.floor(last / SLICE) ~= math.floor(first / SLICE) then trim(last) end
end

-- due is a lower bound of the earliest time at which something waits to be moved.
local function lower_due(known, at)
  if not known or at < tonumber(known) then
    call('HSET', queue, 'due', string.format('%.0f', at))
  end
end

-- The journal's facts about a stored message: sent_at, kind, priority, size (see operations.py for the layout).
local function facts_of(stored)
  local n = string.byte(stored, 18)
  return string.sub(stored, 1, 13) .. '\t' .. string.sub(stored, 19, 18 + n)
end

-- lease_ms, max_attempts, unique states and unique key, tab separated; empty for most messages.
local function limits_of(stored)
  local n = string.byte(stored, 18)
  local m = string.byte(stored, 19 + n)
  return m > 0 and string.sub(stored, 20 + n, 19 + n + m) or ''
end

local function priority_of(stored)
  return tonumber(string.match(facts_of(stored), '\t(%d+)\t%d+$'))
end

-- A delivery: what changes about a message once it has been received, kept apart from its payload.
local DELIVERY = '^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t'
  .. '([^\t]*\t[^\t]*\t[^\t]*\t[^\t]*)\t(.*)$'
local function parse(text)
  local token, expires, attempts, score, received, consumer, replays, facts, limits = string.match(text, DELIVERY)
  return { token = token, expires = tonumber(expires), attempts = tonumber(attempts), score = score,
    received = received, consumer = consumer, replays = replays, facts = facts, limits = limits }
end

local function pack(d)
  return table.concat({ d.token, string.format('%.0f', d.expires), d.attempts, d.score, d.received, d.consumer,
    d.replays, d.facts, d.limits }, '\t')
end

-- The unique key of a message is held in the states it names and free in all others.
local function hold_unique(unique, limits, id, state)
  if limits == '' then return end
  local states, key = string.match(limits, '^[^\t]*\t[^\t]*\t([^\t]*)\t(.*)$')
  if key == '' then return end
  if string.find(states, state, 1, true) then
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
local function trim_done(done, messages, deliveries, history, keep)
  local excess = call('ZCARD', done) - keep
  if excess <= 0 then return end
  local ids = call('ZRANGE', done, 0, math.min(excess, 200) - 1)
  call('ZREM', done, unpack(ids))
  forget(messages, deliveries, history, ids)
end

-- Acks pairs (id, token) from ARGV[first] to ARGV[last]; returns the positions (1-based) whose lease is lost.
local function settle(first, last, now, window, since, keep, k)
  local ids = {}
  for i = first, last, 2 do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 then return {} end
  local found = call('HMGET', k.deliveries, unpack(ids))
  local lost, gone, lines, graves, kept, seen = {}, {}, {}, {}, {}, {}
  local state = keep > 0 and 'done' or 'gone'
  for i = 1, #ids do
    local id, token = ids[i], ARGV[first + 2 * i - 1]
    local d = not seen[id] and held(found[i], token, now)
    if d then
      seen[id] = true
      gone[#gone + 1] = id
      graves[#graves + 1], graves[#graves + 2] = id, token
      lines[#lines + 1] = state .. '\t' .. now .. '\t' .. id .. '\t' .. d.facts .. '\t' .. d.attempts .. '\t'
        .. d.consumer .. '\t\t\t'
      hold_unique(k.unique, d.limits, id, keep > 0 and 'k' or 'g')
      if keep > 0 then
        d.token, d.expires = '', 0
        kept[#kept + 1], kept[#kept + 2] = id, pack(d)
      end
    elseif not (seen[id] or call('HGET', k.acked, id) == token or call('HGET', k.acked_before, id) == token) then
      lost[#lost + 1] = i
    end
  end
  if #gone == 0 then return lost end
  local base = advance('acked', #gone)
  write('acked', base, lines, true)
  tombstone(k.acked, k.acked_before, window, since, graves, base, now)
  if keep > 0 then
    local scored = {}
    for i = 1, #gone do scored[2 * i - 1], scored[2 * i] = now, gone[i] end
    call('ZADD', k.done, unpack(scored))
    call('HSET', k.deliveries, unpack(kept))
    call('ZREM', k.leased, unpack(gone))
    trim_done(k.done, k.messages, k.deliveries, k.history, keep)
  else
    call('ZREM', k.leased, unpack(gone))
    forget(k.messages, k.deliveries, k.history, gone)
  end
  return lost
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
  local own = limits ~= '' and string.match(limits, '^[^\t]*\t([^\t]*)') or ''
  return tonumber(own ~= '' and own or default or 5)
end

-- An index entry without its payload (somebody removed it by hand) is taken out and said so; true if there was one.
local function drop_orphans(zset, ids, stored, now)
  local orphans, lines = {}, {}
  for i = 1, #ids do
    if not stored[i] then
      orphans[#orphans + 1] = ids[i]
      lines[#lines + 1] = table.concat({ 'gone', now, ids[i], now, '', 0, 0, 0, '', '', 'PayloadMissing', '' }, '\t')
    end
  end
  if #orphans == 0 then return false end
  write('deleted', advance('deleted', #orphans), lines, true)
  call('ZREM', zset, unpack(orphans))
  return true
end
