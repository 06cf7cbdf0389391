-- Lists the partitions of the directory.
--
-- KEYS[1] partitions  sorted set  <prefix>:store:{%}:partitions
-- KEYS[2] deadlines   sorted set  <prefix>:store:{%}:deadlines
-- KEYS[3] tokens      hash        <prefix>:store:{%}:tokens
-- ARGV[1] from        the lower bound, as ZRANGEBYLEX takes it
-- ARGV[2] to          the upper bound
-- ARGV[3] limit       maximum number of partitions
-- Returns a list: a partition, its token, a partition, its token, ...
-- Errors: DIRECTORY.
-- Rules: reads.

local partitions, deadlines, tokens = unpack(KEYS)

--- @include lib/directory

local last, problem = open_directory()
if not last then return problem end
local found = redis.call('ZRANGEBYLEX', partitions, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
if not found[1] then return {} end
local answer, of_found = {}, redis.call('HMGET', tokens, unpack(found))
for i = 1, #found do
  answer[2 * i - 1], answer[2 * i] = found[i], of_found[i] or '0'
end
return answer
