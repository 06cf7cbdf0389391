-- Adds fields and members to a copy that is being made beside the thread it will replace. One step of copy_thread.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index.<token>
-- KEYS[2] data       hash        <prefix>:{<thread>}:data.<token>
-- ARGV[1] life       milliseconds after which an abandoned copy goes by itself
-- ARGV[2] n          how many values follow
-- ARGV[3..2+2n]      pairs: field, value
-- ARGV[3+2n..]       members of the index
--
-- Returns nothing.
-- Errors: none of ours.

local index, data = KEYS[1], KEYS[2]
local life, n = ARGV[1], tonumber(ARGV[2])

for i = 3, 2 + 2 * n, 2 do redis.call('HSET', data, ARGV[i], ARGV[i + 1]) end
for i = 3 + 2 * n, #ARGV do redis.call('ZADD', index, 0, ARGV[i]) end
redis.call('PEXPIRE', index, life)
redis.call('PEXPIRE', data, life)
return false
