-- Records that one subscription runs, has done or has given up a message, so that its duplicates do not run. For
-- another broker it also writes what happens to the message to the journal.
-- KEYS: queue journal record
-- ARGV: verb (take, seize, confirm, release, note; seize also takes a running message), attempts, window in ms, token
--       of the delivery ('' for none), number of this take ('' for none), and with a journal line: event, state, id,
--       kind, priority, size, sent_at ms ('' for now), consumer, delay ms until due ('' for none), error class, detail
-- Returns 1 for a message that may run, 0 for one that is done, -1 for one that runs with as many attempts, -2 for one
-- that this very delivery began before. A take that is repeated because its reply was lost is answered as it was.
-- Journal: none of its own; the given line, unless a take is refused or repeated
local record, verb, attempts, window, token, take = KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local event, state, id, kind, priority, size, sent = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12]
local consumer, delay, class, detail = ARGV[13], ARGV[14], ARGV[15], ARGV[16]
local mark, before, holder, taken = match(call('GET', record) or '', '^(%a)(%d*) ?(%S*) ?(%S*)')
if verb == 'take' or verb == 'seize' then
  if mark == 'd' then return 0 end
  if mark == 'r' and token ~= '' and holder == token then return taken == take and 1 or -2 end
  if verb == 'take' and mark == 'r' and tonumber(before) >= tonumber(attempts) then return -1 end
  call('SET', record, table.concat({ 'r' .. attempts, token, take }, ' '), 'PX', window)
elseif verb == 'confirm' then
  call('SET', record, 'd', 'PX', window)
elseif verb == 'release' then
  if mark == 'r' and before == attempts then call('DEL', record) end
end
if event then
  local m, now = require('moves'), clock()
  local set = call('HMGET', queue, 'journal', 'journal_skip')
  m.open(set[1], set[2])
  local facts = table.concat({ sent == '' and now or sent, kind, priority, size }, '\t')
  local due = delay == '' and '' or format('%d', now + delay)
  local terminal = event == 'acked' or event == 'buried'
  local line = m.line(event, state, format('%d', now), id, facts, attempts, consumer, due, class, detail)
  write(m.advance(event, 1), { line }, terminal)
end
return 1
