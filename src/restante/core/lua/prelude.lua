-- Shared by every verb: the clock, the settings and the journal. Each function defined here costs at every call, so
-- code that only some verbs or rare cases need is in parts (`PARTS` in operations.py), which `require` runs by name. It
-- runs a part anew each time, so a verb keeps the result. Each name of the prelude that a part uses also costs at every
-- call, so parts bind functions of Redis and Lua themselves.
-- A verb reads and checks first, then adds to the new place, then removes from the old: Lua never rolls back, so a
-- failure half way may leave a message in two places but never in none.
-- KEYS[1] queue hash (settings, sequence, totals, due), KEYS[2] journal stream: in every verb.
local call, match, format = redis.call, string.match, string.format
local queue, journal = KEYS[1], KEYS[2]
local SPAN = 17592186044416 -- 2^44: room for sequence numbers below each priority, exact in a double
local HORIZON = 5000 -- ms a consumer may wait unasked; a due time before that must wake one
-- How much the journal keeps (full, payloads, terminal, off) and how many sequence numbers it has skipped so far.
local level, skip = 'full', 0
local noted -- what this call has put into the outbox: see `note` in moves.lua
local require -- defined between this file and the verb: require('moves') runs moves.lua

-- Milliseconds, and 1 if part of the next one has passed: times that must not be early count from the next one.
local function clock()
  local t = redis.call('TIME')
  local part = t[2] % 1000
  return t[1] * 1000 + (t[2] - part) / 1000, part > 0 and 1 or 0
end

-- Returns the queue's settings by name, as texts, and sets the journal's level. One field holds them in a fixed order,
-- which configure.lua writes; where all are defaults it holds only the version.
local function read_settings(packed)
  if not packed or #packed < 12 then return { version = packed or '0' } end
  local version, journal_level, pause, lease_ms, max_attempts, dedup_ms, keep_done, max_leased, rate, max_length,
    max_dead, max_payload_bytes = string.match(packed,
      '^(%d+)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t([^\t]*)$')
  if journal_level ~= '' then level = journal_level end
  return { version = version, pause = pause, lease_ms = lease_ms, max_attempts = max_attempts, dedup_ms = dedup_ms,
    keep_done = keep_done, max_leased = max_leased, rate = rate, max_length = max_length, max_dead = max_dead,
    max_payload_bytes = max_payload_bytes }
end

local function refuse(code, text)
  return redis.error_reply('RESTANTE ' .. code .. ' ' .. text)
end

local function whole(text, least, most)
  local n = tonumber(text)
  return n and n % 1 == 0 and n >= least and n <= most and n
end

-- Writes lines after sequence number base, as one stream entry whose id is the number of its last line. bodies are
-- ids and stored forms, stored with the lines if the queue journals payloads.
local function write(base, lines, terminal, bodies)
  local SLICE = 1000 -- lines written between two checks of the journal's length
  local n = #lines
  if level ~= 'full' and level ~= 'payloads' and not (terminal and level == 'terminal') then
    skip = redis.call('HINCRBY', queue, 'journal_skip', n)
    return
  end
  local last = base - skip + n
  local text = n == 1 and lines[1] or table.concat(lines, '\n')
  if bodies and level == 'payloads' then
    redis.call('XADD', journal, string.format('0-%d', last), 'e', text, unpack(bodies))
  else
    redis.call('XADD', journal, string.format('0-%d', last), 'e', text)
  end
  if last % SLICE < n then require('moves').trim(last) end
end
