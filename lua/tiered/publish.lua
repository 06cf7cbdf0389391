-- Sets a note that is not of one thread, for a while.
--
-- KEYS[1] note       string      <prefix>:scanning
-- ARGV[1] text       the note; the token of who scans
-- ARGV[2] length     milliseconds that it stays
-- ARGV[3] once       '1': only where there is none with another text, so who asks again goes on
--
-- Returns 1, or 0 where there was such a one. A full server takes it, too.
-- Errors: none of ours.

local note = KEYS[1]
local text, length, once = ARGV[1], ARGV[2], ARGV[3]

local before = once == '1' and redis.call('GET', note)
if before and before ~= text then return 0 end
redis.call('PERSIST', note) -- a full server refuses a script that would grow, unless it has begun to write
redis.call('SET', note, text, 'PX', length)
return 1
