-- Moves that several verbs share, as a part, so that only calls that need them pay for them.
local call, match, format, slice, find = redis.call, string.match, string.format, string.sub, string.find
local HISTORY = 50 -- attempts kept per message
local CARRY_MS = 250 -- after which another consumer carries what is in the outbox

-- Trims the journal behind the slowest registered reader: keeps at least `keep` lines and at most `cap`; lines beyond
-- the cap that a reader has not read are counted as lost.
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
  call('XTRIM', journal, 'MINID', '~', format('0-%d', to + 1))
  call('HSET', queue, 'journal_floor', format('%d', to))
end

-- Takes n sequence numbers for an event and counts it; returns the number before the first.
local function advance(event, n)
  call('HINCRBY', queue, event, n)
  return call('HINCRBY', queue, 'sequence', n) - n
end

-- Reads the journal level and the number of skipped sequence numbers from their two fields.
local function open(kept, passed)
  level, skip = kept or 'full', tonumber(passed) or 0
end

-- Builds a journal line; see journal.py for the columns.
local function line(event, state, now, id, facts, attempts, consumer, due, class, detail)
  return table.concat({ 1, event, state, now, id, facts, attempts, consumer, due, class, detail }, '\t')
end

-- Lowers the hint `due`, a lower bound of the earliest time at which a message or lease is due.
local function lower_due(known, at)
  if not tonumber(known) or at < tonumber(known) then
    call('HSET', queue, 'due', format('%d', at))
  end
end

-- Splits a stored form into facts for the journal (sent_at, kind, priority, size), limits (lease_ms, max_attempts,
-- unique states, unique key; empty for most) and the sequence number of the send; see stored.py for the layout. A
-- damaged form gets empty facts: it must reach a client, whose checksum detects the damage and which buries it.
local function read(stored)
  local sequence, facts, limits = match(stored, '^(%d+)\n(%d+\t[^\t\n]*\t%d+\t%d+)\n([^\n]*)\n')
  if not facts then return '0\t\t0\t0', '', '0' end
  return facts, limits, sequence
end

-- The score of a ready message: high priority first, then by sequence number.
local function position(facts, sequence)
  return format('%d', (255 - match(facts, '\t(%d+)\t%d+$')) * SPAN + sequence)
end

-- Whether a message has expired. The first field of the limits is lease_ms, then + and expires_ms, then @ and the due
-- time from which it counts: the wait until the due time must not use it up.
local function is_over(facts, limits, now)
  local span, due = match(limits, '^%d*%+(%d+)@?(%d*)')
  return span and math.max(match(facts, '^%d+'), tonumber(due) or 0) + span <= now or false
end

-- Holds the unique key of a message in the states that its limits name, and frees it in all others.
local function hold_unique(unique, limits, id, state)
  if limits == '' then return end
  local states, key = match(limits, '^[^\t]*\t[^\t]*\t([^\t]*)\t([^\t]*)')
  if not key or key == '' then return end
  if find(states, state, 1, true) then
    call('HSETNX', unique, key, id)
  elseif call('HGET', unique, key) == id then
    call('HDEL', unique, key)
  end
end

-- The batch of a message, the last of its limits; nil for most messages.
local function batch_of(limits)
  if limits == '' then return nil end
  return match(limits, '^[^\t]*\t[^\t]*\t[^\t]*\t[^\t]*\t(.+)$')
end

-- Puts into the outbox how a message of a batch has ended, or that it is replayed or moved. The caller of the verb
-- carries it to the batch; if the caller does not, whoever receives next, so the hint `due` names a time for it.
-- `sequence` grows with each entry of one message.
local function note(outbox, limits, id, how, class, now, sequence)
  local batch = batch_of(limits)
  if not batch then return end
  local set = call('HMGET', queue, 'sequence', 'due')
  sequence = format('%d', sequence or set[1] or 0)
  local entry = table.concat({ sequence, batch, how, id, class }, '\t')
  call('ZADD', outbox, sequence, entry)
  noted = noted or {}
  noted[#noted + 1] = entry
  local due = tonumber(set[2])
  if not due or due > now + CARRY_MS then
    call('HSET', queue, 'due', format('%d', now + CARRY_MS))
    noted.sooner = true
  end
end

-- The reply of a verb whose first part lists lost leases: behind them a 0 and what is in the outbox, if anything is.
local function with_noted(lost)
  if not noted then return lost end
  lost[#lost + 1] = 0
  for i = 1, #noted do lost[#lost + 1] = noted[i] end
  return lost
end

-- A delivery is stored apart from the payload, so that no receive rewrites the payload:
-- lease_expires_at (13 digits), token / facts, attempts, consumer / sequence, received_at, replays / limits, and
-- behind them / when, progress (JSON) where the handler has noted any. `pack` leaves the progress out: it ends with the
-- lease.
local DELIVERY = '^(%d+) ([^\n]*)\n([^\t]*\t[^\t]*\t[^\t]*\t[^\t]*)\t(%d+)\t([^\n]*)\n([^\t]*)\t([^\t]*)\t([^\n]*)\n([^\n]*)(.*)$'
local function parse(text)
  local expires, token, facts, attempts, consumer, sequence, received, replays, limits, progress = match(text or '',
    DELIVERY)
  if not limits then
    -- Removed or damaged by hand: the message must still be delivered.
    expires, token, facts, attempts, consumer = 0, '', '0\t\t0\t0', 1, ''
    sequence, received, replays, limits, progress = '0', '', '0', '', ''
  end
  return { token = token, expires = tonumber(expires), attempts = tonumber(attempts), sequence = sequence,
    received = received, consumer = consumer, replays = replays, facts = facts, limits = limits, progress = progress }
end

local function pack(d)
  return format('%013d', d.expires) .. ' ' .. d.token .. '\n' .. d.facts .. '\t' .. d.attempts .. '\t' .. d.consumer
    .. '\n' .. d.sequence .. '\t' .. d.received .. '\t' .. d.replays .. '\n' .. d.limits
end

-- Adds one line per finished attempt; the oldest lines are dropped, so that the history stays bounded.
local function remember(history, id, d, now, event, class, text)
  local lines = call('HGET', history, id) or ''
  local _, count = string.gsub(lines, '\n', '\n')
  if count >= HISTORY then lines = string.gsub(lines, '^[^\n]*\n', '', count - HISTORY + 1) end
  call('HSET', history, id, lines .. table.concat({ d.attempts, d.received, now, event, d.consumer, class, text }, '\t')
    .. '\n')
end

-- Returns the delivery of id if token still holds its lease by the server's clock, else nil.
local function held(text, token, now)
  if not text or token == '' then return nil end
  local d = parse(text)
  if d.token ~= token or d.expires <= now then return nil end
  return d
end

-- Wakes a waiting consumer if a due time is nearer than the one it knows.
local function wake_by(marker, known, at, now)
  lower_due(known, at)
  if at - now <= HORIZON and not (tonumber(known) and tonumber(known) <= at) then call('ZADD', marker, '0', '0') end
end

-- Removes all data of messages that end; ids is a list.
local function forget(messages, deliveries, history, ids)
  call('HDEL', messages, unpack(ids))
  call('HDEL', deliveries, unpack(ids))
  call('HDEL', history, unpack(ids))
end

-- Removes the oldest done messages beyond the queue's limit.
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

-- Ends the last attempt: the message becomes dead, with its error.
local function to_dead(k, id, d, now, event, class, text)
  remember(k.history, id, d, now, event, class, text)
  d.token, d.expires = '', 0
  call('HSET', k.deliveries, id, pack(d))
  call('ZADD', k.dead, now, id)
  call('ZREM', k.leased, id)
  hold_unique(k.unique, d.limits, id, 'd')
  note(k.outbox, d.limits, id, 'dead', class, now)
end

-- Stores a verdict by the token of its lease, for leases that were not lost; ARGV holds one message per `width`
-- arguments from `first` on.
local function decided(verdicts, word, lost, first, width)
  local missed, decisions = {}, {}
  for i = 1, #lost do missed[lost[i]] = true end
  for i = first, #ARGV, width do
    if not missed[(i - first) / width + 1] then
      decisions[#decisions + 1], decisions[#decisions + 2] = ARGV[i + 1], word
    end
  end
  if #decisions > 0 then call('HSET', verdicts, unpack(decisions)) end
end

local function allowed_attempts(limits, default)
  local own = limits ~= '' and match(limits, '^[^\t]*\t([^\t]*)') or ''
  return tonumber(own ~= '' and own or default) or 5
end

-- Removes an index entry whose payload is missing (removed by hand) and journals it; returns true if there was one.
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

return {
  trim = trim,
  advance = advance,
  open = open,
  line = line,
  lower_due = lower_due,
  read = read,
  position = position,
  is_over = is_over,
  hold_unique = hold_unique,
  batch_of = batch_of,
  note = note,
  with_noted = with_noted,
  CARRY_MS = CARRY_MS,
  parse = parse,
  pack = pack,
  remember = remember,
  held = held,
  wake_by = wake_by,
  forget = forget,
  trim_done = trim_done,
  to_dead = to_dead,
  decided = decided,
  allowed_attempts = allowed_attempts,
  drop_orphans = drop_orphans,
}
