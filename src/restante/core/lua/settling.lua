-- Plans and performs acks for the two verbs that take them.
local call, match, format = redis.call, string.match, string.format
local GRAVES = 1000000 -- acked ids kept per generation at most, however long the dedup window

-- Keeps acked ids with their tokens for the dedup window, in two generations that rotate by age or size.
local function tombstone(acked, acked_before, window, since, graves, base, now)
  window, since = tonumber(window) or 60000, tonumber(since) or 0
  if window == 0 then return end
  local crowded = base % 10000 < #graves and call('HLEN', acked) >= GRAVES
  if now < since then
    call('HSET', queue, 'acked_since', now) -- the clock went back: nothing has aged
  elseif crowded or now - since >= window then
    call('UNLINK', acked_before)
    if now - since < 2 * window and call('EXISTS', acked) == 1 then
      call('RENAME', acked, acked_before)
    else
      call('UNLINK', acked)
    end
    call('HSET', queue, 'acked_since', now)
  end
  call('HSET', acked, unpack(graves))
end

-- Plans the acks of pairs (id, token) from ARGV[first] on: which messages are removed, the journal's lines, and which
-- leases are lost. The ids are stored as acked here, before anything moves.
local function plan(first, now, keep, deliveries, unique, acked, acked_before, window, since, base, outbox)
  local ids, gone, lines, graves, lost = {}, {}, {}, {}, {}
  for i = first, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  local found = call('HMGET', deliveries, unpack(ids))
  local lead, seen, count = format('1\tacked\t%s\t%d\t', keep > 0 and 'done' or 'gone', now), {}, 0
  for i = 1, #ids do
    local id, given, text = ids[i], ARGV[first + 2 * i - 1], found[i]
    local expires, token, tail
    if text then expires, token, tail = match(text, '^(%d+) ([^\n]+)\n([^\n]*)\n') end
    if token == given and tonumber(expires) > now and not seen[id] then
      seen[id] = token
      count = count + 1
      gone[count] = id
      graves[2 * count - 1], graves[2 * count] = id, token
      lines[count] = lead .. id .. '\t' .. tail .. '\t\t\t'
      if string.byte(text, -1) ~= 10 then
        local m = require('moves')
        local limits = m.parse(text).limits
      m.hold_unique(unique, limits, id, keep > 0 and 'k' or 'g')
      m.note(outbox, limits, id, 'acked', '', now, base + count)
      end
    elseif not (seen[id] == given or call('HGET', acked, id) == given or call('HGET', acked_before, id) == given) then
      lost[#lost + 1] = i
    end
  end
  if count > 0 then tombstone(acked, acked_before, window, since, graves, base, now) end
  return gone, lines, lost
end

-- Performs planned acks, after their lines are in the journal.
local function apply(gone, now, keep, k)
  if keep > 0 then
    local m = require('moves')
    local scored, given = {}, call('HMGET', k.deliveries, unpack(gone))
    for i = 1, #gone do
      scored[2 * i - 1], scored[2 * i] = now, gone[i]
      local d = m.parse(given[i])
      d.token, d.expires = '', 0
      call('HSET', k.deliveries, gone[i], m.pack(d))
    end
    call('ZADD', k.done, unpack(scored))
    call('ZREM', k.leased, unpack(gone))
    m.trim_done(k, keep)
  else
    call('ZREM', k.leased, unpack(gone))
    call('HDEL', k.messages, unpack(gone))
    call('HDEL', k.deliveries, unpack(gone))
    call('HDEL', k.history, unpack(gone))
  end
end

return plan, apply
