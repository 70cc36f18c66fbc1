-- Notes that a message is at work, done or given up by one subscription, so that its doubles do not run; and, for a
-- broker that is not this server, what happens to it in the journal.
-- KEYS: queue journal record
-- ARGV: verb (take, seize, confirm, release, note), attempts, window in ms; seize takes also what is at work
--       and where it is journalled: event, state, id, kind, priority, size, sent_at ms ('' for now), consumer,
--       delay ms until due ('' for none), error class, detail
-- Returns 1 for a message that may run, 0 for one that is done, -1 for one at work with as many attempts.
-- Journal: the event named, unless a take is refused
local record, verb, attempts, window, event = KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if verb == 'take' or verb == 'seize' then
  local state, before = match(call('GET', record) or '', '^(%a)(%d*)')
  if state == 'd' then return 0 end
  if verb == 'take' and state == 'r' and tonumber(before) >= tonumber(attempts) then return -1 end
  call('SET', record, 'r' .. attempts, 'PX', window)
elseif verb == 'confirm' then
  call('SET', record, 'd', 'PX', window)
elseif verb == 'release' then
  if call('GET', record) == 'r' .. attempts then call('DEL', record) end
end
if event then
  local m, now = moves(), clock()
  local set = call('HMGET', queue, 'journal', 'journal_skip')
  m.open(set[1], set[2])
  local facts = table.concat({ ARGV[10] == '' and now or ARGV[10], ARGV[7], ARGV[8], ARGV[9] }, '\t')
  local due = ARGV[12] == '' and '' or format('%d', now + ARGV[12])
  local terminal = event == 'acked' or event == 'buried'
  local line = m.line(event, ARGV[5], format('%d', now), ARGV[6], facts, attempts, ARGV[11], due, ARGV[13], ARGV[14])
  write(m.advance(event, 1), { line }, terminal)
end
return 1
