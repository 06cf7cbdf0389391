-- Releases a thread, or removes a waiter from its queue.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- KEYS[2] waiters    sorted set  <prefix>:{<thread>}:waiters
-- ARGV[1] token      the owner's token, or its nonce (the 16 hex digits after the epoch) if the token is not known
--
-- Returns 1, or 0 if the caller no longer owns the thread.
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
