-- Claim a name if it is free, mint a fencing token above every earlier one, and describe the term.
-- A caller that finds its own value has won before (an answer got lost): fresh ttl, same token.
-- A candidate that fails is listed, so that others see who stands. A free name is kept for an heir for a while.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- KEYS[3]  candidates: sorted set, "<id> <weight> <identity>" by the ms at which it falls out; only if one is listed
-- ARGV     owner value, ttl ms, retention ms, term id, identity, floor, channel, info, weight, listed ms, deference ms
--          floor: highest token that this process has seen for the name, '0' if none
--          listed: how long a failed try lists the candidate
--          deference: how long a listed candidate of a higher weight goes first
-- Reply    {1, token}                          ours; the token as a string, exact beyond 2^53
--          {0, pttl, token, identity, term id} another's; nil for what is not recorded
--          {2, ms, identity}                   free, but for so long kept for another
--          {-1}                                a key without ttl, so not one of ours
--          {-2, token}                         no higher token fits into 64 bits; nothing was written
--
-- Field 'next' of the record: "<id of the term before> <until, ms> <weight or -> <identity>"; so it ends with a term.
-- No shebang: with one, 6.2 could not parse it and a full server would refuse to run it.
local claim, fence, candidates = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, retention, id, identity, floor, channel, info, weight, listed, deference = unpack(ARGV)
local call, pcall = redis.call, redis.pcall

local time = call('TIME')
local now = time[1] .. string.sub('000000' .. time[2], -6)

-- pcall: whatever is in the way of the list, it is no reason to fail.
local function stand()
  if not candidates then return end
  local ms = string.sub(now, 1, -4)
  pcall('ZREMRANGEBYSCORE', candidates, '-inf', ms)
  pcall('ZADD', candidates, tonumber(ms) + tonumber(listed), id .. ' ' .. weight .. ' ' .. identity)
  pcall('ZREMRANGEBYRANK', candidates, 0, -257)
  local left = pcall('PTTL', candidates)
  if type(left) == 'number' and left < tonumber(listed) then pcall('PEXPIRE', candidates, listed) end
end

local holder = call('GET', claim)
if holder and holder ~= owner then
  local pttl = call('PTTL', claim)
  if pttl == -1 then return {-1} end
  stand()
  local seen = pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {0, pttl, seen[1], seen[2], seen[3]}
end

-- Read the record before anything is written, so that a wrong type leaves no trace. A token that is not a number is none.
local last = call('HMGET', fence, 'token', 'id', 'next')
local token = last[1]
if not (token and string.find(token, '^[1-9]%d*$')) then token = '0' end

if holder and last[2] == id and token ~= '0' then
  call('PEXPIRE', claim, ttl)
  call('PEXPIRE', fence, retention)
  return {1, token}
end

-- Free, but kept for an heir; or to be kept for those of a higher weight that stand.
if not holder and (last[3] or candidates) then
  local ms = tonumber(string.sub(now, 1, -4))
  local before = last[2] or '-'
  local after, till, least, heir = string.match(last[3] or '', '^(%S+) (%d+) (%S+) ?(.*)$')
  local kept = after == before and tonumber(till) - ms
  if kept and kept > 0 then
    if identity ~= heir and tonumber(weight) < (tonumber(least) or math.huge) then
      stand()
      return {2, kept, heir}
    end
  elseif not kept and candidates and deference ~= '0' then
    local highest = 0
    for _, candidate in ipairs(pcall('ZRANGEBYSCORE', candidates, ms, '+inf')) do
      highest = math.max(highest, tonumber(string.match(candidate, '^%S+ (%d+) ')) or 0)
    end
    if highest > tonumber(weight) then
      call('HSET', fence, 'next', before .. ' ' .. ms + tonumber(deference) .. ' ' .. highest)
      call('PEXPIRE', fence, retention)
      stand()
      return {2, tonumber(deference), ''}
    end
  end
end

-- Numbers are compared, and counted on, as decimal strings: a Lua number is a double and loses digits beyond 2^53.
for _, other in ipairs({now, floor}) do
  if #other > #token or (#other == #token and other > token) then token = other end
end
if #token > 19 or (#token == 19 and token > '9223372036854775806') then return {-2, token} end
local head, digit, nines = string.match(token, '^(%d*)([0-8])(9*)$')
if head then token = head .. digit + 1 .. string.rep('0', #nines) else token = '1' .. string.rep('0', #token) end

-- The claim is written last: should a command be denied half-way, no claim is left behind.
call('HSET', fence, 'token', token, 'id', id, 'identity', identity, 'since', now, 'ttl', ttl, 'info', info)
call('PEXPIRE', fence, retention)
call('SET', claim, owner, 'PX', ttl)
if candidates then pcall('ZREM', candidates, id .. ' ' .. weight .. ' ' .. identity) end

-- pcall: a user without channel rights still gets the claim; waiters then poll.
pcall('PUBLISH', channel, '1 acquired ' .. token .. ' ' .. id .. ' ' .. ttl .. ' ' .. identity)
return {1, token}
