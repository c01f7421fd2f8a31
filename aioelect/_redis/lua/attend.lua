-- Take part in a group, tell anew what a member holds, or leave; and learn who takes part.
--
-- KEYS[1]  members: sorted set, "<id> <stays: 1 or 0> <held partitions, as the bits of a hex number> <identity>" by the
--          ms at which it falls out
-- ARGV     id, the rest of the entry, listed ms ('0': leaves), tell ('1': what it holds has become free), channel
-- Reply    {now, {entry, ms, entry, ms, ...}}   now: the server's clock, ms
local members = KEYS[1]
local id, entry, listed, tell, channel = unpack(ARGV)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', members, '-inf', now)

local known = false
for _, other in ipairs(redis.call('ZRANGEBYSCORE', members, '-inf', '+inf')) do
  if string.sub(other, 1, #id + 1) == id .. ' ' then
    redis.call('ZREM', members, other)
    known = true
  end
end
local leaves = listed == '0'
if not leaves then
  redis.call('ZADD', members, now + tonumber(listed), id .. ' ' .. entry)
  if redis.call('PTTL', members) < tonumber(listed) then redis.call('PEXPIRE', members, listed) end
end

-- pcall: a user without channel rights takes part as well; the others then see it at their next look.
if tell == '1' or known == leaves then redis.pcall('PUBLISH', channel, '1 members ' .. id) end
return {now, redis.call('ZRANGEBYSCORE', members, '-inf', '+inf', 'WITHSCORES')}
