-- Notes that cold has all of a thread that only this server had.
--
-- KEYS[1] data       hash        <prefix>:{<thread>}:data
--
-- Returns nothing.
-- Errors: none of ours.

local data = KEYS[1]

if redis.call('EXISTS', data) == 0 then return end
if redis.call('HEXISTS', data, '@home') == 0 then redis.call('HSET', data, '@home', '1', '@whole', '1') end
redis.call('HDEL', data, '@dirty')
