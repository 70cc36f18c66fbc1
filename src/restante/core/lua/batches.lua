-- Counts and ends batches: a part of the verbs of a batch. `k` holds the keys by name. A member of a batch is a message,
-- or a batch of its own; its value is one letter, its queue, the number of the last entry counted, and the error's class.
local call, match, format, slice = redis.call, string.match, string.format, string.sub
local MOST = 30000 -- bytes of their list in that message, whose headers are bounded
local LISTED = 100 -- messages that failed and are listed in the record and in the message at the end
local ENDINGS = { dead = 'd', cancelled = 'c', deleted = 'x', purged = 'u', lapsed = 'l', lost = 'o' }
local WORDS = { d = 'dead', c = 'cancelled', x = 'deleted', u = 'purged', l = 'lapsed', o = 'lost' }
local m = require('moves')

-- CRC-32 of a text, by half bytes: the table of a whole byte would take longer to make than most texts to read.
local HALF = { 0 }
for i = 1, 15 do
  local c = i
  for _ = 1, 4 do c = bit.bxor(bit.rshift(c, 1), bit.band(c, 1) * 0xEDB88320) end
  HALF[i + 1] = c
end
local function crc32(text)
  local crc, band, bxor, rshift, byte = -1, bit.band, bit.bxor, bit.rshift, string.byte
  for i = 1, #text do
    crc = bxor(crc, byte(text, i))
    crc = bxor(rshift(crc, 4), HALF[band(crc, 15) + 1])
    crc = bxor(rshift(crc, 4), HALF[band(crc, 15) + 1])
  end
  crc = bit.bnot(crc)
  return string.char(band(rshift(crc, 24), 255), band(rshift(crc, 16), 255), band(rshift(crc, 8), 255), band(crc, 255))
end

-- The counts, and the first messages that did not succeed, as JSON.
local function summary(k, name, record)
  local failed, more, size = {}, 0, 0
  for word in pairs(ENDINGS) do more = more + (tonumber(record[word]) or 0) end
  for id in string.gmatch(record.failed or '', '%S+') do
    local letter, home, class = match(call('HGET', k.members, id) or '', '^([^p]) (%S+) %d+ (.*)$')
    if letter and size < MOST then
      failed[#failed + 1] = format('{"id":"%s","queue":"%s","ended":"%s","error":"%s"}', id, home, WORDS[letter], class)
      more, size = more - 1, size + #failed[#failed]
    end
  end
  local parts = { format('{"id":"%s","total":%d,"done":%d', name, record.total or 0, record.acked or 0) }
  for _, word in ipairs({ 'dead', 'cancelled', 'deleted', 'purged', 'lapsed', 'lost', 'pending' }) do
    parts[#parts + 1] = format('"%s":%d', word, record[word] or 0)
  end
  return table.concat(parts, ',') .. ',"failed":[' .. table.concat(failed, ',') .. '],"more":' .. more .. '}'
end

-- Stores the message that is promised for an event. The draft has the stored form's head, its options up to the place
-- of the counts, and the payload; see stored.py. It is stored although the queue may be full.
local function send(k, name, event, record, now)
  local head, options, body = record[event .. '_head'], record[event .. '_options'], record[event .. '_body']
  local id = match(name, '[^/]*$') .. ':' .. event
  if not head or call('HEXISTS', k.messages, id) == 1 then return end
  local set = call('HMGET', queue, 'journal', 'journal_skip')
  m.open(set[1], set[2])
  options = options .. summary(k, name, record) .. '}}'
  local tail = string.char(math.floor(#options / 256), #options % 256) .. options .. body
  local base, stamp = m.advance('sent', 1), format('%d', now)
  local sequence, facts = format('%d', base + 1), stamp .. '\t' .. match(head, '^[^\n]*')
  local form = sequence .. '\n' .. stamp .. '\t' .. head .. crc32(head .. tail) .. tail
  write(base, { m.line('sent', 'ready', stamp, id, facts, 0, '', '', '', event .. ' of batch ' .. name) }, false,
    { id, form })
  call('HSET', k.messages, id, form)
  call('ZADD', k.ready, m.position(facts, sequence), id)
  call('ZADD', k.marker, '0', '0')
end

local function read(k)
  local record, flat = {}, call('HGETALL', k.batch)
  for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
  return record
end

-- Takes a message out that was added and never sent; returns false if an entry of it was counted, so that it was sent.
local function leave_out(k, id)
  local member = call('HGET', k.members, id)
  if member and not match(member, '^p %S+ 0 ') then return false end
  if member then
    call('HDEL', k.members, id)
    call('HINCRBY', k.batch, 'total', -1)
    call('HINCRBY', k.batch, 'pending', -1)
  end
  return true
end

-- The number of the entry with which a message left a queue for another, 0 if it never did: what that queue said
-- before is old news, however late it comes.
local function left_with(k, id, place)
  local last = '0'
  for from, number in string.gmatch(call('HGET', k.batch, 'moved:' .. id) or '', '(%S+) (%d+)') do
    if from == place then last = number end
  end
  return last
end

-- Counts one entry of an outbox, unless it or a later one of the message was counted already.
local function count(k, name, source, sequence, how, id, class, now)
  if how == 'unsent' then
    if leave_out(k, id) then return end
    how = 'lost'
  end
  local letter, place, last, error = match(call('HGET', k.members, id) or '', '^(%a) (%S+) (%d+) (.*)$')
  if not letter then return end
  if sequence <= tonumber(place == source and last or left_with(k, id, source)) then return end
  if how == 'moved' then
    local before = call('HGET', k.batch, 'moved:' .. id) or ''
    call('HSET', k.batch, 'moved:' .. id, format('%s %s %d', before, source, sequence))
  end
  if how == 'lost' and letter ~= 'p' then return end
  local returns = how == 'moved' or how == 'replayed'
  if returns and place ~= source then return end -- it is elsewhere by now
  local before, after = WORDS[letter] or 'pending', returns and 'pending' or how
  call('HINCRBY', k.batch, before, -1)
  call('HINCRBY', k.batch, after, 1)
  if how == 'acked' then
    call('HDEL', k.members, id)
  else
    local to, upto = source, format('%d', sequence)
    if how == 'moved' then to, upto = class, left_with(k, id, class) end -- the other queue counts for itself
    call('HSET', k.members, id, table.concat({ ENDINGS[how] or 'p', to, upto, returns and '' or class }, ' '))
  end
  if not ENDINGS[how] then return end
  local failed = call('HGET', k.batch, 'failed') or ''
  local _, listed = string.gsub(failed, '%S+', '')
  if listed < LISTED and not string.find(failed .. ' ', ' ' .. id .. ' ', 1, true) then
    call('HSET', k.batch, 'failed', failed .. ' ' .. id)
  end
  if how == 'dead' and call('HSETNX', k.batch, 'first_dead_at', format('%d', now)) == 1 then
    local record = read(k)
    if record.state ~= 'cancelled' then send(k, name, 'dead', record, now) end
  end
end

-- Ends a batch that is sealed or given up, once nothing of it waits: sends the message of its end, and tells the batch
-- that it is a part of.
local function finish(k, name, now)
  local state, pending, ended = unpack(call('HMGET', k.batch, 'state', 'pending', 'ended_at'))
  if ended or (tonumber(pending) or 0) > 0 or (state ~= 'running' and state ~= 'cancelled') then return end
  call('HSET', k.batch, 'ended_at', format('%d', now))
  local record, id = read(k), match(name, '[^/]*$')
  if state == 'running' then
    call('HSET', k.batch, 'state', 'complete')
    send(k, name, 'complete', record, now)
  end
  if record.parent ~= '' then
    local dead = (tonumber(record.dead) or 0) > 0
    local how = state == 'cancelled' and 'cancelled' or dead and 'dead' or 'acked'
    m.note(k.outbox, '\t\t\t\t' .. record.parent, name, how, dead and 'BatchHasDead' or '', now, 1)
  end
  call('ZREM', k.batches, id)
  call('ZREMRANGEBYSCORE', k.batches_ended, '-inf', now)
  call('ZADD', k.batches_ended, format('%d', now + record.keep_ms), id)
  call('PEXPIRE', k.batch, record.keep_ms)
  call('PEXPIRE', k.members, record.keep_ms)
end

return { count = count, finish = finish, leave_out = leave_out }
