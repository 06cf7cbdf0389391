-- Adds a page of fields and members to an unfinished copy of a thread: one step of copy_thread.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index.<token>
-- KEYS[2] data       hash        <prefix>:{<thread>}:data.<token>
-- ARGV[1] life       milliseconds after which an abandoned copy expires
-- ARGV[2] page       number of this page, from 1
-- ARGV[3] n          number of values that follow
-- ARGV[4..3+2n]      pairs: field, value
-- ARGV[4+2n..]       members of the index
--
-- Returns 1, or 0 if earlier pages are missing (evicted, or lost in a failover). Then the script wrote nothing, and the
-- caller starts the copy again.
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
