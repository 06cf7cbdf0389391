-- Removes an empty partition from the directory, unless another process has announced it again.
--
-- KEYS[1] partitions  sorted set  <prefix>:store:{%}:partitions
-- KEYS[2] deadlines   sorted set  <prefix>:store:{%}:deadlines
-- KEYS[3] tokens      hash        <prefix>:store:{%}:tokens
-- ARGV[1] partition   its labels
-- ARGV[2] token       the greatest token that the partition refuses
-- Returns 1 if it was removed, else 0.
-- Errors: DIRECTORY.
-- Rules: reads.

local partitions, deadlines, tokens = unpack(KEYS)

--- @include lib/directory

local last, lasting = open_directory()
if not last then return lasting end
local token = redis.call('HGET', tokens, ARGV[1])
if not token then return 0 end
if not tonumber(token) then return redis.error_reply('DIRECTORY a token of the directory cannot be read') end
if tonumber(token) > tonumber(ARGV[2]) then return 0 end
lasting = lasting - take_out(ARGV[1])
close_directory(last, lasting)
return 1
