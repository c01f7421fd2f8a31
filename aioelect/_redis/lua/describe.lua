-- Who holds a name, and who stands for it. Writes nothing, and never tells the owner value.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- KEYS[3]  candidates: sorted set, "<id> <weight> <identity>" by the ms at which it falls out
-- Reply    {pttl, now, {token, identity, term id, since, ttl, info, next, asked}, candidates}
--          pttl: negative if nobody holds it; now: the server's clock, ms; nil for what is not recorded
local claim, fence, candidates = KEYS[1], KEYS[2], KEYS[3]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id', 'since', 'ttl', 'info', 'next', 'asked')
if seen.err then seen = {} end
local standing = redis.pcall('ZRANGEBYSCORE', candidates, now, '+inf')
if standing.err then standing = {} end
return {redis.call('PTTL', claim), now, seen, standing}
