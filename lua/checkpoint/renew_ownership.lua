-- Makes the lease of a thread's owner begin anew.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- ARGV[1] token      the owner's
-- ARGV[2] lease      milliseconds for which it is owned, unless that is renewed again
-- ARGV[3] kept       milliseconds for which the key stays behind that
--
-- Returns 1; 0 where somebody else took the thread, or the key is gone.
-- Errors: none of ours.

--- @include lib/owner

local owner = KEYS[1]
local token, lease, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local record = redis.call('GET', owner)
if owner_of(record) ~= token then return 0 end
renewed(owner, record, lease, kept)
return 1
