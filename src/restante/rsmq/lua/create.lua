-- createQueue. A call that is made again after a lost answer may find what it made itself.
-- KEYS: names, messages. ARGV: queue, vt in s, delay in s, maxsize, '1' for a repeated call.
-- Returns 1; 0 = there is one.
local names, messages = KEYS[1], KEYS[2]
local queue, vt, delay, maxsize, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local q = call('HMGET', messages, 'vt', 'delay', 'maxsize')
if q[1] then
  local same = again == '1' and q[1] == vt and q[2] == delay and q[3] == maxsize
  if same then call('SADD', names, queue) end
  return same and 1 or 0
end
local now = call('TIME')[1]
call('SADD', names, queue)
call('HSET', messages, 'vt', vt)
for field, value in pairs({delay = delay, maxsize = maxsize, created = now, modified = now}) do
  call('HSETNX', messages, field, value)
end
return 1
