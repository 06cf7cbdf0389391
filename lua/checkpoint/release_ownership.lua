-- Gives a thread back, by its owner, or ends the wait for it.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- KEYS[2] waiters    sorted set  <prefix>:{<thread>}:waiters
-- ARGV[1] token      the owner's; or its nonce, the 16 hex digits after the epoch, if the caller may have no token yet
--
-- Returns 1; 0 where the caller does not own it any more.
-- Errors: none of ours.

--- @include lib/owner

local owner, waiters = KEYS[1], KEYS[2]
local token = ARGV[1]

local nonce = string.match(token, '%x+$')
redis.call('ZREM', waiters, 'arrival ' .. nonce, 'alive ' .. nonce)
local held = owner_of(redis.call('GET', owner))
if not held or held ~= token and string.match(held, '%x+$') ~= token then return 0 end
redis.call('UNLINK', owner)
return 1
