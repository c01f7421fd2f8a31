-- Give a claim up for its holder, on an operator's word: only if its token is the one that the operator has seen.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     token, channel
-- Reply    {1, receivers}                       let go; how many subscribers were told
--          {0}                                  nobody holds it
--          {-1, pttl, token, identity, term id} held under another token; nil for what is not recorded
local claim, fence = KEYS[1], KEYS[2]
local token, channel = unpack(ARGV)

local pttl = redis.call('PTTL', claim)
if pttl == -2 then return {0} end
local seen = redis.call('HMGET', fence, 'token', 'identity', 'id')
if seen[1] ~= token then return {-1, pttl, seen[1], seen[2], seen[3]} end

redis.call('DEL', claim)
-- pcall: a denied PUBLISH must not turn a release that has happened into an error.
local told = redis.pcall('PUBLISH', channel, '1 released - ' .. (seen[3] or '-') .. ' ' .. (seen[2] or ''))
if type(told) ~= 'number' then told = 0 end
return {1, told}
