-- Sets the note of the scanning process, for a while.
--
-- KEYS[1] note       string      <prefix>:scanning
-- ARGV[1] text       the note: the token of the scanning process
-- ARGV[2] length     milliseconds for which the note is kept
-- ARGV[3] once       '1': only if there is no note with another text, so a repeated request succeeds
--
-- Returns 1, or 0 if there was another note. Works on a full server.
-- Errors: none of ours.

local note = KEYS[1]
local text, length, once = ARGV[1], ARGV[2], ARGV[3]

local before = once == '1' and redis.call('GET', note)
if before and before ~= text then return 0 end
redis.call('PERSIST', note) -- a full server accepts this write, and then the others
redis.call('SET', note, text, 'PX', length)
return 1
