-- Gives a thread back, by its owner.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- ARGV[1] token      the owner's; or the 16 hex digits behind the epoch alone, for who does not know whether it has taken the thread
--
-- Returns 1; 0 where the caller does not own it any more.
-- Errors: none of ours.

--- @include lib/owner

local owner = KEYS[1]
local token = ARGV[1]

local held = owner_of(redis.call('GET', owner))
if not held or held ~= token and string.match(held, '%x+$') ~= token then return 0 end
redis.call('UNLINK', owner)
return 1
