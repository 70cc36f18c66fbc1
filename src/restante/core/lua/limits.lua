-- Limits what a receive may take: a part of receive.lua, for queues with settings.

local call = redis.call

-- Returns how many of n messages a receive may take, and the tokens there are if the queue has a rate. `ending` leases
-- end with this call.
local function allowed(n, set, leased, ending, now)
  if set.pause ~= '' then return 0 end
  local max_leased, rate = tonumber(set.max_leased), tonumber(set.rate)
  if max_leased and n > 0 then n = math.max(0, math.min(n, max_leased - call('ZCARD', leased) + ending)) end
  if not rate or n == 0 then return n end
  local bucket = call('HMGET', queue, 'tokens', 'tokens_at')
  local filled_at, most = tonumber(bucket[2]) or now, math.max(1, rate)
  if filled_at > now then call('HSET', queue, 'tokens_at', now) end -- the clock went back
  local tokens = math.min(most, (tonumber(bucket[1]) or most) + math.max(0, now - filled_at) * rate / 1000)
  return math.min(n, math.floor(tokens)), tokens
end

return allowed
