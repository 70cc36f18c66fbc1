-- Up to count messages that are due, in their order, all hidden from now on for vt seconds.
-- KEYS: due, messages. ARGV: vt in s ('' = the queue's), count.
-- Returns {id, body, count, first received} flat, per message; 0 = no such queue, 2 = the queue's vt is out of the
-- protocol's range, or was written in milliseconds.
local due, messages = KEYS[1], KEYS[2]
local vt, most = ARGV[1], ARGV[2]
local queue_vt, _, _, totalrecv = read_queue(messages, 'totalrecv')
if not queue_vt then return 0 end
if vt == '' then vt = seconds_of(queue_vt, queue_vt, totalrecv) end
if not vt then return 2 end
local now = clock()
local ids = call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)
if #ids == 0 then return {} end
local fields, scores = {}, {}
for i, id in ipairs(ids) do
  fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = id, id .. ':rc', id .. ':fr'
  scores[2 * i - 1], scores[2 * i] = now + vt * 1000, id
end
local found = call('HMGET', messages, unpack(fields))
local answer, written = {}, {'totalrecv', (tonumber(totalrecv) or 0) + #ids}
for i, id in ipairs(ids) do
  local count, first = (tonumber(found[3 * i - 1]) or 0) + 1, found[3 * i]
  written[#written + 1] = fields[3 * i - 1]
  written[#written + 1] = count
  if not first then
    first = now
    written[#written + 1] = fields[3 * i]
    written[#written + 1] = now
  end
  answer[4 * i - 3], answer[4 * i - 2], answer[4 * i - 1], answer[4 * i] = id, found[3 * i - 2], count, first
end
call('ZADD', due, unpack(scores))
call('HSET', messages, unpack(written))
return answer
