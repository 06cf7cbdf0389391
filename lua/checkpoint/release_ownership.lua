-- Releases a thread, or removes a waiter from its queue.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- KEYS[2] waiters    sorted set  <prefix>:{<thread>}:waiters
-- ARGV[1] token      the owner's token, or its nonce (the 16 hex digits after the epoch) if the token is not known
-- ARGV[2] refused    milliseconds for which take_ownership.lua refuses the nonce, or 0. For a caller whose request to
--                    take the thread may still be under way
--
-- Returns 1, or 0 if the caller no longer owns the thread.
-- Errors: none of ours.

--- @include lib/owner

local owner, waiters = KEYS[1], KEYS[2]
local token, refused = ARGV[1], tonumber(ARGV[2])
local nonce = string.match(token, '%x+$')
redis.call('ZREM', waiters, 'arrival ' .. nonce, 'alive ' .. nonce)
if refused > 0 then
  local deadline = string.format('%.0f', now_in_milliseconds() + refused)
  redis.call('ZADD', waiters, deadline, 'ended ' .. nonce)
  if redis.call('PTTL', waiters) < refused then redis.call('PEXPIREAT', waiters, deadline) end
end
local held = owner_of(redis.call('GET', owner))
if not held or held ~= token and string.match(held, '%x+$') ~= token then return 0 end
redis.call('UNLINK', owner)
return 1
