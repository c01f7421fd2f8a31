-- Take back the claim of a round that has won nothing, unless a later round of the same acquisition has renewed it:
-- this may arrive late.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     owner value, round, channel, notice
-- Reply    {1} taken back
--          {0} nothing to take back
local claim, fence = KEYS[1], KEYS[2]
local owner, round, channel, notice = unpack(ARGV)

if redis.call('GET', claim) ~= owner then return {0} end
local last = redis.call('HMGET', fence, 'round', 'token')
if (tonumber(last[1]) or 0) > tonumber(round) then return {0} end
redis.call('DEL', claim)
-- Whoever has seen the token recorded may have gone to sleep until the ttl; a mere vote was never told to anybody.
if last[2] and last[2] ~= '' then redis.pcall('PUBLISH', channel, notice) end
return {1}
