-- Sets the count of all processes right after a scan, and tells them what the scan found.
--
-- KEYS[1] unflushed  hash        <prefix>:unflushed
-- ARGV[1] result     the scan's id, dirty threads, records, age of the oldest in milliseconds, records set aside
-- ARGV[2] records    records that the scan found
-- ARGV[3] before     records written in all when the scan began
-- ARGV[4] length     milliseconds for which the count is kept
--
-- What was reported as written during the scan is added, because the scan may have missed it.
-- Returns 1. A full server takes it, too.
-- Errors: none of ours.

local unflushed = KEYS[1]
local result, records, before, length = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

-- A number of the count; 0 if another program wrote something else.
local function number(text)
  local value = tonumber(text or '')
  return value and math.abs(value) < 1e15 and value or 0
end

redis.call('PERSIST', unflushed) -- a full server refuses a script that would grow, unless it has begun to write
local written = number(redis.call('HGET', unflushed, 'written'))
if before > written then before = 0 end -- the count was lost meanwhile, and begun anew
local flushed = before - records
redis.call('HSET', unflushed, 'written', string.format('%.0f', written), 'flushed', string.format('%.0f', flushed))
redis.call('HSET', unflushed, 'scan', result)
redis.call('PEXPIRE', unflushed, length)
return 1
