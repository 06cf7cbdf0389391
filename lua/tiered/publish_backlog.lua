-- Sets the count of all processes after a scan, and publishes the result of the scan.
--
-- KEYS[1] unflushed  hash        <prefix>:unflushed
-- ARGV[1] result     the scan's id, dirty threads, records, age of the oldest in milliseconds, records set aside
-- ARGV[2] records    records that the scan found
-- ARGV[3] before     total of written records when the scan began
-- ARGV[4] length     milliseconds for which the count is kept
--
-- Adds the records that were reported as written during the scan, because the scan may have missed them.
-- Returns 1. Works on a full server.
-- Errors: none of ours.

--- @include lib/backlog

local unflushed = KEYS[1]
local result, records, before, length = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local kept = math.max(tonumber(length), redis.call('PTTL', unflushed)) -- a pause may be longer
redis.call('PERSIST', unflushed) -- a full server accepts this write, and then the others
local written = number(redis.call('HGET', unflushed, 'written'))
if before > written then before = 0 end -- the count was lost meanwhile
local flushed = before - records
redis.call('HSET', unflushed, 'written', string.format('%.0f', written), 'flushed', string.format('%.0f', flushed))
local clock = redis.call('TIME')
redis.call('HSET', unflushed, 'scan', result, 'scanned', string.format('%.0f', clock[1] * 1000 + clock[2] / 1000))
redis.call('PEXPIRE', unflushed, kept)
return 1
