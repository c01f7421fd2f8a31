-- Let a node of a quorum vote at once: somebody has said that it never held a claim.
--
-- KEYS[1]  register: hash, see vote.lua
-- ARGV     longest ttl ms
-- Reply    {1}
local run = ''
local info = redis.pcall('INFO', 'server')
if type(info) == 'string' then run = string.match(info, 'run_id:(%w+)') or '' end
redis.call('HSET', KEYS[1], 'run', run, 'since', '0', 'longest', ARGV[1])
redis.call('PEXPIRE', KEYS[1], '7776000000')
return {1}
