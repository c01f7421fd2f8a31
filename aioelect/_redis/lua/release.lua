-- Give a claim up if it is ours: at once, or `keep` from now but never later than its ttl; and tell who waits.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     owner value, keep ms ('0': at once), channel, notice
-- Reply    {1, receivers}                       ours, and let go; how many subscribers were told
--          {0}                                  gone
--          {-1, pttl, token, identity, term id} another's; nil for what is not recorded
local claim, fence = KEYS[1], KEYS[2]
local owner, keep, channel, notice = unpack(ARGV)

local holder = redis.call('GET', claim)
if not holder then return {0} end
if holder ~= owner then
  local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {-1, redis.call('PTTL', claim), seen[1], seen[2], seen[3]}
end

if keep == '0' then
  redis.call('DEL', claim)
else
  local left = redis.call('PTTL', claim)
  if left < 0 or tonumber(keep) < left then redis.call('PEXPIRE', claim, keep) end
end

-- pcall: a denied PUBLISH must not turn a release that has happened into an error.
local told = redis.pcall('PUBLISH', channel, notice)
if type(told) ~= 'number' then told = 0 end
return {1, told}
