-- Writes its name into a key, and checks for a while whether it stays there. Two callers at a time see whether a script
-- runs alone.
--
-- KEYS[1] data       hash        <prefix>:{<thread>}:data.<token>
-- ARGV[1] name       the caller's name
-- ARGV[2] rounds     number of checks
--
-- Returns 1 if another command ran in between, else 0.
-- Errors: none of ours.

local data = KEYS[1]
local name, rounds = ARGV[1], tonumber(ARGV[2])
redis.call('HSET', data, 'name', name)
for _ = 1, rounds do
  if redis.call('HGET', data, 'name') ~= name then return 1 end
end
redis.call('UNLINK', data)
return 0
