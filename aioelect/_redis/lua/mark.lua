-- Note that a run of a schedule is finished, in the holder's name only: whoever leads next does not repeat it.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- KEYS[3]  periods: hash, by schedule the instant of the latest run that was finished, microseconds since 1970
-- ARGV     owner value, schedule, instant, first ('1': only if nothing is noted yet), keep ms
-- Reply    {1, instant}                         ours; what is noted now
--          {0}                                  gone
--          {-1, pttl, token, identity, term id} another's; nil for what is not recorded
local claim, fence, periods = KEYS[1], KEYS[2], KEYS[3]
local owner, schedule, instant, first, keep = unpack(ARGV)

local holder = redis.call('GET', claim)
if not holder then return {0} end
if holder ~= owner then
  local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {-1, redis.call('PTTL', claim), seen[1], seen[2], seen[3]}
end

local noted = redis.call('HMGET', periods, schedule)[1]
local known = noted and tonumber(noted)
if not known or (first ~= '1' and tonumber(instant) > known) then
  redis.call('HSET', periods, schedule, instant)
  noted = instant
end
if redis.call('PTTL', periods) < tonumber(keep) then redis.call('PEXPIRE', periods, keep) end
return {1, noted}
