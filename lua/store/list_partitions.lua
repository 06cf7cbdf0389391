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
local members = redis.call('ZRANGEBYLEX', partitions, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
if not members[1] then return {} end
local answer, its_tokens = {}, redis.call('HMGET', tokens, unpack(members))
for i = 1, #members do
  answer[2 * i - 1], answer[2 * i] = members[i], its_tokens[i] or '0'
end
return answer
