-- Announces a partition in the directory, before its first item is put, or before its items get a later deadline.
--
-- KEYS[1] partitions  sorted set  <prefix>:store:{%}:partitions
-- KEYS[2] deadlines   sorted set  <prefix>:store:{%}:deadlines
-- KEYS[3] tokens      hash        <prefix>:store:{%}:tokens
-- ARGV[1] partition   its labels
-- ARGV[2] ttl         lifetime of its items in milliseconds; '0' if they do not expire
-- ARGV[3] above       a number that the token has to exceed
-- Removes some entries whose deadline has passed, because their partitions have expired.
-- Returns {token, deadline}: the deadline in milliseconds, '0' for none.
-- Errors: DIRECTORY.
-- Rules: confirmed.

local partitions, deadlines, tokens = unpack(KEYS)
local partition, ttl, above = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local SLACK = 600000 -- an entry lives twice its TTL, and these milliseconds more
local SWEPT = 20 -- maximum number of other entries that one call removes

--- @include lib/directory

local last, lasting = open_directory()
if not last then return lasting end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local passed = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', now), 'LIMIT', 0, SWEPT)
for _, other in ipairs(passed) do take_out(other) end

local token = math.max(time[1] * 1000000 + time[2], last + 1, above + 1)
local is_there, deadline = redis.call('HEXISTS', tokens, partition) == 1, redis.call('ZSCORE', deadlines, partition)
if ttl == 0 or is_there and not deadline then
  if deadline or not is_there then lasting = lasting + 1 end
  redis.call('ZREM', deadlines, partition)
  deadline = '0'
else
  deadline = string.format('%.0f', math.max(tonumber(deadline or '0') or 0, now + 2 * ttl + SLACK))
  redis.call('ZADD', deadlines, deadline, partition)
end
redis.call('ZADD', partitions, 0, partition)
redis.call('HSET', tokens, partition, string.format('%.0f', token))
close_directory(token, lasting)
return { string.format('%.0f', token), deadline }
