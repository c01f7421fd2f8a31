-- Write a majority's choice back to a node that is part of it: its next proposal is above it. Tells who listens.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     owner value, term id, token, channel, notice
-- Reply    {1} recorded, and the claim is ours
--          {0} not ours any more; nothing was written
local claim, fence = KEYS[1], KEYS[2]
local owner, id, token, channel, notice = unpack(ARGV)

if redis.call('GET', claim) ~= owner then return {0} end
local last = redis.call('HMGET', fence, 'id', 'proposed')
if last[1] ~= id then return {0} end

-- As decimal strings: a Lua number loses digits beyond 2^53. A higher proposal of this node stays: it never goes back.
local proposed = last[2] or '0'
if #token > #proposed or (#token == #proposed and token > proposed) then proposed = token end
redis.call('HSET', fence, 'token', token, 'proposed', proposed)
redis.pcall('PUBLISH', channel, notice)
return {1}
