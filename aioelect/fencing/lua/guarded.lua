-- Run a piece of Lua only if the token is not older than the newest that this resource has seen.
--
-- KEYS[1]  fence: string, the newest token; in the hash slot of the data, and outlives it
-- KEYS[2+] the data's keys: KEYS[1+] of the piece
-- ARGV     token, how long the fence outlives the data in ms, then ARGV[1+] of the piece
-- Reply    {1, newest, what the piece returned}   carried out; newest is the token itself
--          {0, newest}                            refused: a newer one has been seen; nothing was written
--
-- No shebang: with one, 6.2 could not parse it and a full server would refuse to run it.
local fence, token, retention = KEYS[1], ARGV[1], tonumber(ARGV[2])

-- Numbers are compared as decimal strings: a Lua number is a double and loses digits beyond 2^53.
local newest = redis.call('GET', fence)
if newest and (#newest > #token or (#newest == #token and newest > token)) then return {0, newest} end

-- The token is noted first: a piece that fails half-way has written, and nobody older may write after it.
redis.call('SET', fence, token)

local function piece(KEYS, ARGV)
--BODY--
end
local keys, arguments = {unpack(KEYS, 2)}, {unpack(ARGV, 3)}
local done, result = pcall(piece, keys, arguments)

-- The fence stays for as long as the data, and then for the retention: an old holder may write it back.
local longest = 0
for _, key in ipairs(keys) do
  local left = redis.call('PTTL', key)
  if left == -1 then longest = nil break end
  if left > longest then longest = left end
end
if longest then redis.call('PEXPIRE', fence, string.format('%.0f', longest + retention)) end

if not done then return type(result) == 'table' and result or redis.error_reply(result) end
return {1, token, result}
