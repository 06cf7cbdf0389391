-- Gives leases back that hold a token.
--
-- KEYS[1..]          strings <prefix>:cache:{<shard>}:lease:<namespace><key>
-- ARGV[1] token      what they hold
--
-- Returns how many were given back; those of others are left.
-- Errors: none of ours.

local leases, token = KEYS, ARGV[1]

local released = 0
for _, lease in ipairs(leases) do
  if redis.call('GET', lease) == token then released = released + redis.call('UNLINK', lease) end
end
return released
