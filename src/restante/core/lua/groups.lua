-- The book of groups: who of a queue's groups waits, is leased or failed, and whose turn is when. A part, for calls that
-- meet a message with a group and for queues that have had one.
-- A queue is shared fairly by turns (virtual time): within a priority a message's place is one turn behind the last of
-- its group, and never before the place that was served last. So a group that sends much waits behind itself.
-- The hash `groups` holds, each as a text:
--   priority, tab, group  a lane: how many messages wait, and the last turn that was given; only while some wait, since
--                         without one the group's last turn has been served
--   tab, priority         the clock of the priority: the turn served last, and the last one given to messages without a
--                         group, which take turns like one group
--   group                 messages scheduled, leased (where the queue had a group_concurrency when they were received),
--                         retrying and dead, flags (p paused, w waits for its rate), and the time in ms until which its
--                         rate is used up; only while one of them is not zero
-- `held` holds ready messages that may not be delivered yet, by group, score and id; `waits` groups by the time at
-- which to look at them again.
local call, match, format = redis.call, string.match, string.format
local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil
local LET_IN = 200 -- messages of one group let in by one call: more would block the server
local KEEP = 10000 -- ms: buckets that are full again are forgotten together, not one by one

-- Opens the book with the queue's group settings, which are the end of its packed settings.
local function open_book(k, packed)
  packed = packed or match(call('HGET', queue, 'settings') or '', ';(.*)$') or ''
  local since, most, rate, paused, weights = match(packed, '^([^;]*);([^;]*);([^;]*);([^;]*);(.*)$')
  weights = weights or ''
  return { k = k, records = {}, names = {}, lanes = {}, lane_names = {}, freed = {}, clocks = {},
    since = tonumber(since), most = tonumber(most), rate = tonumber(rate), paused = tonumber(paused) or 0,
    weights = weights, unit = tonumber(match(weights, '^[%d.]+')) or 1 }
end

-- Writes that the queue has groups from now on: turns begin behind every place that was given before.
local function begin(book, base)
  book.since = base
  call('HSET', queue, 'grouped', format('%d', base))
  require('moves').repack(call('HINCRBY', queue, 'version', 1))
end

-- Reads records of groups, lanes and clocks that the book does not have yet, by one call.
local function load_fields(book, groups, lanes, priorities)
  local wanted, seen = {}, {}
  local function want(names, known, prefix)
    for i = 1, #names do
      local field = prefix .. names[i]
      if not known[names[i]] and not seen[field] then seen[field], wanted[#wanted + 1] = true, field end
    end
    return #wanted
  end
  local first = want(groups, book.records, '')
  local second = want(lanes, book.lanes, '')
  want(priorities, book.clocks, '\t')
  if #wanted == 0 then return end
  local found = call('HMGET', book.k.groups, unpack(wanted))
  for i = 1, #wanted do
    local name, text = wanted[i], found[i] or ''
    if i <= first then
      local scheduled, leased, retrying, dead, flags, full_at = match(text, '^(%d+) (%d+) (%d+) (%d+) (%l*) ([%d.]+)$')
      book.records[name] = { s = tonumber(scheduled) or 0, l = tonumber(leased) or 0, t = tonumber(retrying) or 0,
        d = tonumber(dead) or 0, flags = flags or '', full_at = tonumber(full_at) or 0, known = full_at and true }
      book.names[#book.names + 1] = name
    elseif i <= second then
      local count, last = match(text, '^(%d+) ([%d.]+)$')
      book.lanes[name] = { count = tonumber(count) or 0, last = tonumber(last) or 0, known = last and true }
      book.lane_names[#book.lane_names + 1] = name
    else
      local served, plain = match(text, '^(%d+) (%d+)$')
      book.clocks[string.sub(name, 2)] = { served = tonumber(served) or book.since or 0, plain = tonumber(plain) or 0 }
    end
  end
end

local function record_of(book, group)
  if not book.records[group] then load_fields(book, { group }, {}, {}) end
  return book.records[group]
end

local function lane_of(book, group, priority)
  local name = priority .. '\t' .. group
  if not book.lanes[name] then load_fields(book, {}, { name }, {}) end
  return book.lanes[name]
end

-- Priorities are texts, as they are in the facts of a message.
local function clock_of(book, priority)
  if not book.clocks[priority] then load_fields(book, {}, {}, { priority }) end
  return book.clocks[priority]
end

-- Reads what the messages of a send need, from ARGV[first] on.
local function load_sent(book, first, last)
  local lanes, priorities, seen = {}, {}, {}
  for i = first, last, 4 do
    local priority, form = ARGV[i + 2], ARGV[i + 3]
    if not seen[priority] then seen[priority], priorities[#priorities + 1] = true, priority end
    local group = match(form, '^[^\n]*\n[^\t\n]*\t[^\t\n]*\t[^\t\n]*\t[^\t\n]*\t([^\t\n]+)')
    if group then lanes[#lanes + 1] = priority .. '\t' .. group end
  end
  load_fields(book, {}, lanes, priorities)
end

-- The next turn of a group, or of the messages without one.
local function next_turn(book, group, priority)
  local time = clock_of(book, priority)
  if not group then
    time.plain, time.changed = floor(max(time.served, time.plain) + book.unit), true
    return time.plain
  end
  local lane, weight = lane_of(book, group, priority), 1
  if book.weights ~= '' then
    local _, ends = string.find(book.weights, '\1' .. group .. '\2', 1, true)
    weight = ends and tonumber(match(book.weights, '^[%d.]+', ends + 1)) or 1
  end
  lane.last, lane.changed = max(time.served, lane.last) + book.unit / weight, true
  return floor(lane.last)
end

local function served(book, priority, turn)
  local time = clock_of(book, priority)
  if turn > time.served then time.served, time.changed = turn, true end
end

local function count_state(book, group, priority, state, by)
  if state == 'r' then
    local lane = lane_of(book, group, priority)
    lane.count, lane.changed = max(0, lane.count + by), true
  else
    local record = record_of(book, group)
    record[state], record.changed = max(0, record[state] + by), true
  end
end

-- Counts a message of a group out of one state and into another; nil stands for none, and for leases that do not count.
local function shift(book, group, priority, from, to)
  if from then count_state(book, group, priority, from, -1) end
  if to then count_state(book, group, priority, to, 1) end
  if from and from ~= 's' and from ~= 'd' then book.freed[#book.freed + 1] = group end
end

-- Whether a group is paused or waits for its rate. The mark of the latter may outlive the limit.
local function is_stopped(book, record)
  return match(record.flags, 'p') ~= nil or (book.rate ~= nil and record.flags ~= '')
end

-- How many messages of a group may be let in. With a limit of one a message that waits for its retry keeps its place,
-- so that the next one does not overtake it.
local function room_of(book, record)
  if is_stopped(book, record) then return 0 end
  if not book.most then return LET_IN end
  return min(LET_IN, book.most - record.l - (book.most == 1 and record.t or 0))
end

-- Moves held messages of groups that have room to `ready`, by their places; returns how many.
local function let_in(book)
  local k, freed, count = book.k, book.freed, 0
  book.freed = {}
  if #freed == 0 or call('EXISTS', k.held) == 0 then return 0 end
  local seen = {}
  for i = 1, #freed do
    local group = freed[i]
    local record = record_of(book, group)
    local room = seen[group] and 0 or room_of(book, record)
    if record.wished then room = min(room, record.wished) end
    seen[group] = true
    if room > 0 then
      local members = call('ZRANGEBYLEX', k.held, '[' .. group .. '\t', '(' .. group .. '\n', 'LIMIT', 0, room)
      local scored = {}
      for j = 1, #members do
        local score, id = match(members[j], '^[^\t]*\t0*(%d+)\t(.*)$')
        scored[2 * j - 1], scored[2 * j] = score, id
      end
      if #members > 0 then
        call('ZADD', k.ready, unpack(scored))
        call('ZREM', k.held, unpack(members))
        count = count + #members
      end
    end
  end
  return count
end

-- Writes what has changed, and removes what is zero.
local function save(book)
  local written, gone = {}, {}
  for i = 1, #book.names do
    local name = book.names[i]
    local record = book.records[name]
    if record.changed then
      if record.s + record.l + record.t + record.d == 0 and record.flags == '' and record.full_at == 0 then
        if record.known then gone[#gone + 1] = name end
      else
        written[#written + 1] = name
        written[#written + 1] = format('%d %d %d %d %s %s', record.s, record.l, record.t, record.d, record.flags,
          format(record.full_at % 1 == 0 and '%d' or '%.3f', record.full_at))
      end
      record.changed, record.known = nil, true
    end
  end
  for i = 1, #book.lane_names do
    local name = book.lane_names[i]
    local lane = book.lanes[name]
    if lane.changed then
      if lane.count == 0 then
        if lane.known then gone[#gone + 1] = name end
        lane.last = 0
      else
        written[#written + 1] = name
        written[#written + 1] = format(lane.last % 1 == 0 and '%d %d' or '%d %.4f', lane.count, lane.last)
      end
      lane.changed, lane.known = nil, true
    end
  end
  for priority, time in pairs(book.clocks) do
    if time.changed then
      written[#written + 1] = '\t' .. priority
      written[#written + 1] = format('%d %d', time.served, time.plain)
      time.changed = nil
    end
  end
  if #written > 0 then call('HSET', book.k.groups, unpack(written)) end
  if #gone > 0 then call('HDEL', book.k.groups, unpack(gone)) end
end

-- Lets in what may come in, and writes the book; returns how many messages came in.
local function close_book(book)
  local count = let_in(book)
  save(book)
  return count
end

-- The time in ms until which a group's rate may be used up: a burst of one second, at least one message.
local function spare(book)
  return (max(1, book.rate) - 1) * 1000 / book.rate
end

-- Uses one message of a group's rate.
local function spend(book, group, record, now)
  record.full_at, record.changed = max(record.full_at, now) + 1000 / book.rate, true
  local forget_at = ceil(record.full_at / KEEP) * KEEP
  if call('ZADD', book.k.waits, 'NX', format('%d', forget_at), group) == 1 then
    book.soonest = min(book.soonest or forget_at, forget_at)
  end
end

-- Notes that a group waits until its rate has room.
local function wait_for_rate(book, group, record)
  local room_at = ceil(record.full_at - spare(book) - 0.0005)
  record.flags, record.changed = string.gsub(record.flags, 'w', '') .. 'w', true
  call('ZADD', book.k.waits, format('%d', room_at), group)
  book.soonest = min(book.soonest or room_at, room_at)
end

-- Sees to it that groups of which messages were taken are looked at again when their rate has room for what is held
-- back: nothing else might let it in before they are settled.
local function expect(book, taken)
  if #taken == 0 or call('EXISTS', book.k.held) == 0 then return end
  for i = 1, #taken do
    local group, record = taken[i], book.records[taken[i]]
    if not match(record.flags, 'w')
      and call('ZRANGEBYLEX', book.k.held, '[' .. group .. '\t', '(' .. group .. '\n', 'LIMIT', 0, 1)[1] then
      wait_for_rate(book, group, record)
    end
  end
end

-- Whether a group may have no message delivered now. One whose rate is used up is noted in `waits`.
local function is_blocked(book, group, record, now)
  if is_stopped(book, record) then return true end
  if book.most and record.l + (book.most == 1 and record.t or 0) >= book.most then return true end
  if not book.rate or record.full_at <= now + spare(book) + 0.0005 then return false end
  wait_for_rate(book, group, record)
  return true
end

-- Looks at the groups whose time has come: whose rate has room, or has not been used for long.
local function look_again(book, now)
  local names = call('ZRANGEBYSCORE', book.k.waits, '-inf', now, 'LIMIT', 0, LET_IN)
  load_fields(book, names, {}, {})
  for i = 1, #names do
    local record = book.records[names[i]]
    if match(record.flags, 'w') then
      record.flags = string.gsub(record.flags, 'w', '')
      record.wished = book.rate
        and floor((spare(book) - max(0, record.full_at - now)) * book.rate / 1000 + 1.001) or nil
      book.freed[#book.freed + 1] = names[i]
    end
    record.changed = true
    if record.full_at <= now then
      record.full_at = 0
      call('ZREM', book.k.waits, names[i])
    else
      call('ZADD', book.k.waits, format('%d', ceil(record.full_at / KEEP) * KEEP), names[i])
    end
  end
end

-- Goes on through the groups with held messages after the settings of groups have changed, or a group was resumed;
-- returns whether there is more to look at. The place is in the queue hash.
local function look_through(book)
  local place = call('HGET', queue, 'group_cursor')
  if not place then return false end
  for _ = 1, 20 do
    local member = call('ZRANGEBYLEX', book.k.held, place == '-' and '-' or '(' .. place .. '\n', '+', 'LIMIT', 0, 1)[1]
    if not member then
      call('HDEL', queue, 'group_cursor')
      return false
    end
    local group = match(member, '^[^\t]*')
    local record = record_of(book, group)
    record.flags, record.changed = string.gsub(record.flags, 'w', ''), true -- its rate may be another now
    book.freed[#book.freed + 1] = group
    -- A group without a limit comes in part by part.
    if book.most or call('ZLEXCOUNT', book.k.held, '[' .. group .. '\t', '(' .. group .. '\n') <= LET_IN
      or record.flags ~= '' then
      place = group
    else
      break
    end
  end
  call('HSET', queue, 'group_cursor', place)
  return true
end

return { open_book = open_book, begin = begin, load_fields = load_fields, load_sent = load_sent, record_of = record_of,
  lane_of = lane_of, next_turn = next_turn, served = served, shift = shift, let_in = let_in, save = save,
  close_book = close_book, spend = spend, is_blocked = is_blocked, expect = expect, look_again = look_again,
  look_through = look_through }
