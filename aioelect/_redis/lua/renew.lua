-- Prolong a claim if it is ours. Never creates it. PEXPIRE is not refused by a full server, unlike SET.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     owner value, ttl ms, retention ms
-- Reply    {1, asked}                           ours, with its full ttl again; nil or a request to step down
--          {0}                                  gone
--          {-1, pttl, token, identity, term id} another's; nil for what is not recorded
--
-- Field 'asked' of the record: "<term id> <identity of who is to follow, or nothing>"; meant for that term only.
local claim, fence = KEYS[1], KEYS[2]
local owner, ttl, retention = unpack(ARGV)

local holder = redis.call('GET', claim)
if not holder then return {0} end
if holder ~= owner then
  local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {-1, redis.call('PTTL', claim), seen[1], seen[2], seen[3]}
end

redis.call('PEXPIRE', claim, ttl)
redis.call('PEXPIRE', fence, retention)
local asked = redis.pcall('HMGET', fence, 'asked')
return {1, asked[1]}
