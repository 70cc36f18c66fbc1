-- Plans and performs acks for the two verbs that take them.
local call, match, find, format = redis.call, string.match, string.find, string.format
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
-- leases are lost; also the groups of those whose leases count for their group, nil if there are none. The ids are
-- stored as acked here, before anything moves.
local function plan(first, now, keep, deliveries, unique, acked, acked_before, window, since, base, outbox)
  local ids, gone, lines, graves, lost, freed = {}, {}, {}, {}, {}, nil
  for i = first, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  local found = call('HMGET', deliveries, unpack(ids))
  local m
  local lead, seen, count = format('1\tacked\t%s\t%d\t', keep > 0 and 'done' or 'gone', now), {}, 0
  for i = 1, #ids do
    local id, given, text = ids[i], ARGV[first + 2 * i - 1], found[i]
    local ends, expires, token, tail, _
    if text then _, ends, expires, token, tail = find(text, '^(%d+) ([^\n]+)\n([^\n]*)\n') end
    if token == given and tonumber(expires) > now and not seen[id] then
      local group, counted
      seen[id] = token
      count = count + 1
      gone[count] = id
      graves[2 * count - 1], graves[2 * count] = id, token
      if string.byte(text, -1) ~= 10 then
        -- Most messages with limits have only a group.
        group, counted = match(text, '^[^\n]*\n\t\t\t\t([^\t\n]+)(\t?%*?)$', ends + 1)
        if not group then
          m = m or require('moves')
          local d = m.parse(text)
          local limits = d.limits
          m.hold_unique(unique, limits, id, keep > 0 and 'k' or 'g')
          m.note(outbox, limits, id, 'acked', '', now, base + count)
          group, counted = m.group_of(limits), d.counted and '\t*'
        end
      end
      if group then
        lines[count] = '2' .. string.sub(lead, 2) .. id .. '\t' .. tail .. '\t\t\t\t' .. group
        if counted == '\t*' then
          freed = freed or {}
          freed[#freed + 1] = group
        end
      else
        lines[count] = lead .. id .. '\t' .. tail .. '\t\t\t'
      end
    elseif not (seen[id] == given or call('HGET', acked, id) == given or call('HGET', acked_before, id) == given) then
      lost[#lost + 1] = i
    end
  end
  if count > 0 then tombstone(acked, acked_before, window, since, graves, base, now) end
  return gone, lines, lost, freed
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

-- Counts acked messages out of their groups; returns how many messages were let in for them.
local function leave(freed, k)
  local groups = require('groups')
  local book = groups.open_book(k)
  groups.load_fields(book, freed, {}, {})
  for i = 1, #freed do groups.shift(book, freed[i], nil, 'l') end
  return groups.close_book(book)
end

return plan, apply, leave
