-- Counts the records of a thread that cold lacks.
--
-- KEYS[1] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[2] flush      hash        <prefix>:{<thread>}:flush
--
-- Returns {records, age of the oldest in milliseconds, records that were set aside}.
-- Errors: none of ours.
-- Rules: reads.

local dirty, flush = unpack(KEYS)

local oldest = redis.pcall('ZRANGE', dirty, 0, 0, 'WITHSCORES')
if oldest.err or not oldest[2] then return { 0, 0, 0 } end -- gone by now, or another program's key
local clock = redis.call('TIME')
local aside = string.match(redis.call('HGET', flush, 'set_aside') or '', '^%d%d?%d?%d?%d?%d?%d?%d?%d?$') or '0'
local age = math.max(0, clock[1] * 1000 + clock[2] / 1000 - oldest[2] / 1000)
return { redis.call('ZCARD', dirty), math.floor(age), tonumber(aside) }
