-- Claim a name if it is free, mint a fencing token above every earlier one, and describe the term.
-- A caller that finds its own value has won before (an answer got lost): fresh ttl, same token.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- ARGV     owner value, ttl ms, retention ms, term id, identity, floor, channel
--          floor: highest token that this process has seen for the name, '0' if none
-- Reply    {1, token}                          ours; the token as a string, exact beyond 2^53
--          {0, pttl, token, identity, term id} another's; nil for what is not recorded
--          {-1}                                a key without ttl, so not one of ours
--          {-2, token}                         no higher token fits into 64 bits; nothing was written
--
-- No shebang: with one, 6.2 could not parse it and a full server would refuse to run it.
local claim, fence = KEYS[1], KEYS[2]
local owner, ttl, retention, id, identity, floor, channel = unpack(ARGV)

local holder = redis.call('GET', claim)
if holder and holder ~= owner then
  local pttl = redis.call('PTTL', claim)
  if pttl == -1 then return {-1} end
  local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {0, pttl, seen[1], seen[2], seen[3]}
end

-- Read the record before anything is written, so that a wrong type leaves no trace. A token that is not a number is none.
local last = redis.call('HMGET', fence, 'token', 'id')
local token = last[1]
if not (token and string.find(token, '^[1-9]%d*$')) then token = '0' end

if holder and last[2] == id and token ~= '0' then
  redis.call('PEXPIRE', claim, ttl)
  redis.call('PEXPIRE', fence, retention)
  return {1, token}
end

-- Numbers are compared as decimal strings: a Lua number is a double and loses digits beyond 2^53.
local function higher(a, b)
  if #a ~= #b then return #a > #b and a or b end
  return a > b and a or b
end

local time = redis.call('TIME')
local now = time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
local limit = '9223372036854775806'
token = higher(higher(token, now), floor)
if higher(token, limit) ~= limit then return {-2, token} end

-- The claim is written last: should a command be denied half-way, a number is skipped, but no claim is left behind.
redis.call('HSET', fence, 'token', token, 'id', id, 'identity', identity, 'since', now, 'ttl', ttl)
redis.call('PEXPIRE', fence, retention)
redis.call('HINCRBY', fence, 'token', 1)
token = redis.call('HGET', fence, 'token')
redis.call('SET', claim, owner, 'PX', ttl)

-- pcall: a user without channel rights still gets the claim; waiters then poll.
redis.pcall('PUBLISH', channel, '1 acquired ' .. token .. ' ' .. id .. ' ' .. ttl .. ' ' .. identity)
return {1, token}
