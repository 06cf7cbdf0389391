-- Starts a new lease for a thread's owner.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- ARGV[1] token      the owner's token
-- ARGV[2] lease      milliseconds until the lease expires, unless it is renewed
-- ARGV[3] kept       milliseconds by which the key outlives the lease
--
-- Returns 1, or 0 if somebody else took the thread, or the key is gone.
-- Errors: none of ours.

--- @include lib/owner

local owner = KEYS[1]
local token, lease, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local record = redis.call('GET', owner)
if owner_of(record) ~= token then return 0 end
renewed(owner, record, lease, kept)
return 1
