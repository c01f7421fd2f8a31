-- Give a claim up if it is ours: at once, or `keep` from now but never later than its ttl; and tell who waits.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     owner value, keep ms ('0': at once), channel, notice, retention ms, term id, heir ms ('0': none), heir
--          heir: the identity for which the next term is kept for so long
-- Reply    {1, receivers}                       ours, and let go; how many subscribers were told
--          {0}                                  gone
--          {-1, pttl, token, identity, term id} another's; nil for what is not recorded
local claim, fence = KEYS[1], KEYS[2]
local owner, keep, channel, notice, retention, id, within, heir = unpack(ARGV)

local holder = redis.call('GET', claim)
if not holder then return {0} end
if holder ~= owner then
  local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {-1, redis.call('PTTL', claim), seen[1], seen[2], seen[3]}
end

-- pcall: if nothing can be written (a full server), the claim is let go all the same. The format: see acquire.lua.
if within ~= '0' then
  local time = redis.call('TIME')
  local till = time[1] * 1000 + math.floor(time[2] / 1000) + keep + within
  redis.pcall('HSET', fence, 'next', id .. ' ' .. till .. ' - ' .. heir)
  redis.pcall('PEXPIRE', fence, retention)
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
