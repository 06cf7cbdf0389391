-- Adds fields and members to a copy that is being made beside the thread it will replace. One step of copy_thread.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index.<token>
-- KEYS[2] data       hash        <prefix>:{<thread>}:data.<token>
-- ARGV[1] life       milliseconds after which an abandoned copy goes by itself
-- ARGV[2] page       which page this is, from 1
-- ARGV[3] n          how many values follow
-- ARGV[4..3+2n]      pairs: field, value
-- ARGV[4+2n..]       members of the index
--
-- Returns 1; 0 where the pages before this one are not all there (a key was evicted, or a failover lost them): nothing was
-- written, and the copy is to be begun anew.
-- Errors: none of ours.

local index, data = KEYS[1], KEYS[2]
local life, page, n = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local staged = tonumber(redis.call('HGET', data, '@copy_pages') or 0)
if staged ~= page and staged ~= page - 1 then return 0 end
if staged > 0 and not redis.call('ZSCORE', index, '') then return 0 end

redis.call('HSET', data, '@copy_pages', page)
redis.call('PEXPIRE', data, life)
redis.call('ZADD', index, 0, '')
redis.call('PEXPIRE', index, life)
for i = 4, 3 + 2 * n, 2 do redis.call('HSET', data, ARGV[i], ARGV[i + 1]) end
for i = 4 + 2 * n, #ARGV do redis.call('ZADD', index, 0, ARGV[i]) end
return 1
