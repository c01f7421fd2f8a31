-- Vote in an election among independent masters: claim the name on this node if it is free, and propose a token above
-- every one that this node has seen. The majority's choice is written back by record.lua; until then the record says
-- '' for its token. A node that may have forgotten claims abstains until the longest of them must have run out.
--
-- KEYS[1]  claim: string, the owner value
-- KEYS[2]  fence record: hash, outlives the claim
-- KEYS[3]  register: hash, lives as long as the node's data: run (the server's run id), since (ms, server time: from
--          then on nothing was forgotten), longest (ms: the longest ttl in use)
-- ARGV     owner value, ttl ms, retention ms, term id, identity, floor, round, longest ttl ms
--          round: rises with every round of one acquisition
-- Reply    {1, run, token, recorded}               ours; recorded = 1: the token is the majority's choice
--          {0, run, pttl, token, identity, term id} another's; nil for what is not recorded
--          {-1, run}                               a key without ttl, so not one of ours
--          {-2, run, token}                        no higher token fits into 64 bits; no claim was made
--          {-3, run, ms}                           abstains for so long
local claim, fence, register = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, retention, id, identity, floor, round, longest = unpack(ARGV)

local time = redis.call('TIME')
local now = time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
local now_ms = math.floor(tonumber(now) / 1000)

-- Has this node lost its data, or may it have? A missing register: all of it, nobody knows when. Another run: what was
-- not on disk when it stopped. Without the right to INFO a restart with old data is not seen.
local run, uptime = '', 0
local info = redis.pcall('INFO', 'server')
if type(info) == 'string' then
  run = string.match(info, 'run_id:(%w+)') or ''
  uptime = tonumber(string.match(info, 'uptime_in_seconds:(%d+)')) or 0
end
local known = redis.call('HMGET', register, 'run', 'since', 'longest')
local since = tonumber(known[2])
if not since then
  since = now_ms
elseif run ~= '' and run ~= known[1] then
  since = math.max(since, now_ms - uptime * 1000)
elseif run == '' then
  run = known[1] or ''
end
since = math.min(since, now_ms) -- the clock was set back: count anew
local wait = math.max(tonumber(known[3]) or 0, tonumber(longest), tonumber(ttl))
redis.call('HSET', register, 'run', run, 'since', string.format('%.0f', since), 'longest', string.format('%.0f', wait))
redis.call('PEXPIRE', register, '7776000000') -- 90 days: nobody has asked for so long, and everybody waits once more

local holder = redis.call('GET', claim)
if holder and holder ~= owner then
  local pttl = redis.call('PTTL', claim)
  if pttl == -1 then return {-1, run} end
  local seen = redis.pcall('HMGET', fence, 'token', 'identity', 'id')
  if seen.err then seen = {false, false, false} end
  return {0, run, pttl, seen[1], seen[2], seen[3]}
end

local last = redis.call('HMGET', fence, 'token', 'proposed', 'id')
local function number(text)
  return text and string.find(text, '^[1-9]%d*$') and text or '0'
end
local token, proposed = number(last[1]), number(last[2])

-- Also where the claim is the caller's own: old data may hold one that was taken back since, and the name given away.
local left = since + wait - now_ms
if left > 0 then return {-3, run, left} end

if holder and last[3] == id and (token ~= '0' or proposed ~= '0') then
  redis.call('PEXPIRE', claim, ttl)
  redis.call('PEXPIRE', fence, retention)
  redis.call('HSET', fence, 'round', round)
  if token ~= '0' then return {1, run, token, 1} end
  return {1, run, proposed, 0}
end

-- Numbers are compared as decimal strings: a Lua number is a double and loses digits beyond 2^53.
local function higher(a, b)
  if #a ~= #b then return #a > #b and a or b end
  return a > b and a or b
end

local limit = '9223372036854775806'
proposed = higher(higher(higher(token, proposed), now), floor)
if higher(proposed, limit) ~= limit then return {-2, run, proposed} end
local head, digit, nines = string.match(proposed, '^(%d-)([0-8]?)(9*)$')
proposed = head .. (tonumber(digit) or 0) + 1 .. string.rep('0', #nines)

-- The claim is written last: should a command be denied half-way, a number is skipped, but no claim is left behind.
redis.call('HSET', fence, 'proposed', proposed, 'token', '', 'id', id, 'identity', identity, 'since', now, 'ttl', ttl,
  'round', round)
redis.call('PEXPIRE', fence, retention)
redis.call('SET', claim, owner, 'PX', ttl)
return {1, run, proposed, 0}
