-- Pauses the flushers of all processes, or ends their pause.
--
-- KEYS[1] unflushed  hash        <prefix>:unflushed
-- ARGV[1] pause      milliseconds from now; 0 ends a pause
-- ARGV[2] length     milliseconds for which the count is kept
--
-- Flushers learn it from their next report (`lua/tiered/report_backlog.lua`).
-- Returns 1. Works on a full server.
-- Errors: none of ours.

local unflushed = KEYS[1]
local pause, length = tonumber(ARGV[1]), tonumber(ARGV[2])

local clock = redis.call('TIME')
local kept = math.max(length, pause, redis.call('PTTL', unflushed))
redis.call('HDEL', unflushed, 'paused') -- a full server accepts this write, and then the others
if pause > 0 then
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('HSET', unflushed, 'paused', string.format('%.0f', now + pause))
end
redis.call('PEXPIRE', unflushed, kept)
return 1
