-- Adds the records that a process wrote and flushed to the count of all processes. Admits a write if there is room.
--
-- KEYS[1] unflushed  hash        <prefix>:unflushed
-- ARGV[1] written    records that the process wrote since its last report
-- ARGV[2] flushed    records that it flushed since then
-- ARGV[3] scan       the last scan that the process knows, or ''
-- ARGV[4] max        the write is admitted and counted if fewer records are left; 0 if there is no write
-- ARGV[5] length     milliseconds for which the count is kept
--
-- If there was a later scan, it may have seen the flushed records already, so they are not subtracted: until the next
-- scan the count may be too high, but never too low.
-- Returns {records left, 1 if the write is admitted, total of written records, the result of the last scan or ''}.
-- Works on a full server.
-- Errors: none of ours.

local unflushed = KEYS[1]
local written, flushed, scan, max, length = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- Returns a number of the count, or 0 if another program wrote something else.
local function number(text)
  local value = tonumber(text or '')
  return value and math.abs(value) < 1e15 and value or 0
end

redis.call('PERSIST', unflushed) -- a full server accepts this write, and then the others
local stored = redis.call('HMGET', unflushed, 'written', 'flushed', 'scan')
local result = stored[3] or ''
if string.match(result, '^%x*') ~= scan then flushed = 0 end
written, flushed = number(stored[1]) + written, number(stored[2]) + flushed
flushed = math.min(flushed, written)
local admitted = written - flushed < max and 1 or 0
written = written + admitted
redis.call('HSET', unflushed, 'written', string.format('%.0f', written), 'flushed', string.format('%.0f', flushed))
redis.call('PEXPIRE', unflushed, length)
return { written - flushed, admitted, written, result }
