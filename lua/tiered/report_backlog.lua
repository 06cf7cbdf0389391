-- Adds the records that a process wrote and flushed to the count of all processes. Admits a write if there is room.
--
-- KEYS[1] unflushed  hash        <prefix>:unflushed
-- ARGV[1] written    records that the process wrote since its last report
-- ARGV[2] flushed    records that it flushed since then
-- ARGV[3] scan       the last scan that the process knows, or ''
-- ARGV[4] limit      the write is admitted and counted if fewer records are left; 0 if there is no write
-- ARGV[5] length     milliseconds for which the count is kept
-- ARGV[6] generation  that of the count, as the process knows it, or ''
-- ARGV[7] known      total of written records that it knows of that generation
-- ARGV[8] new        a random generation, in case hot lost its data
--
-- If there was a later scan, it may not have found the flushed records, so they are not subtracted. Until the next scan
-- the count may be too high.
-- The generation changes if the count is gone, or older than what the process knows. Then records may be lost.
-- Returns {records left, 1 if the write is admitted, total of written records, milliseconds since the last scan,
--   milliseconds for which flushing is still paused, the result of the last scan or '', generation}.
-- Works on a full server.
-- Errors: none of ours.

--- @include lib/backlog

local unflushed = KEYS[1]
local written, flushed, scan, limit, length = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local generation, known, new = ARGV[6], tonumber(ARGV[7]), ARGV[8]
local LONGEST_PAUSE = 86400000 -- milliseconds; a longer one shows that the clock was set back

local kept = math.max(tonumber(length), redis.call('PTTL', unflushed)) -- a pause may be longer
redis.call('PERSIST', unflushed) -- a full server accepts this write, and then the others
local stored = redis.call('HMGET', unflushed, 'written', 'flushed', 'scan', 'generation', 'scanned', 'paused')
local result = stored[3] or ''
if string.match(result, '^%x*') ~= scan then flushed = 0 end
if written < 0 then written, flushed = 0, flushed - written end -- it took back records; the total must not fall
if not string.match(stored[4] or '', '^%x+$') or stored[4] == generation and number(stored[1]) < known then
  redis.call('HSET', unflushed, 'generation', new)
  stored[4] = new
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local age, paused = stored[5] and math.max(0, now - number(stored[5])) or 0, math.max(0, number(stored[6]) - now)
if paused > LONGEST_PAUSE then paused = 0 end
written, flushed = number(stored[1]) + written, number(stored[2]) + flushed
flushed = math.min(flushed, written)
local admitted = written - flushed < limit and 1 or 0
written = written + admitted
redis.call('HSET', unflushed, 'written', string.format('%.0f', written), 'flushed', string.format('%.0f', flushed))
redis.call('PEXPIRE', unflushed, kept)
return { written - flushed, admitted, written, age, paused, result, stored[4] }
