-- Ask the present holder to step down: it finds the request with its next renewal, and a notice tells it at once.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     identity of the candidate that is to follow ('': whoever is first), channel
-- Reply    {1, pttl, token, identity, term id} asked; nil for what is not recorded
--          {0}                                 nobody holds it, or it is not recorded who
local claim, fence = KEYS[1], KEYS[2]
local heir, channel = unpack(ARGV)

local pttl = redis.call('PTTL', claim)
local seen = redis.call('HMGET', fence, 'token', 'identity', 'id')
local id = seen[3]
if pttl < 0 or not id then return {0} end

redis.call('HSET', fence, 'asked', id .. ' ' .. heir)
redis.pcall('PUBLISH', channel, '1 asked - ' .. id)
return {1, pttl, seen[1], seen[2], id}
