-- Stores entries of one shard under the current generations. Makes missing generations.
--
-- KEYS[1] shard      string      <prefix>:cache:{<shard>}:generation: the shard's generation
-- KEYS[2] index      sorted set  <prefix>:cache:{<shard>}:index
-- KEYS[3..]          pairs of strings, for each entry: its namespace's generation, the entry
-- ARGV[1] fresh      value of each generation that is missing
-- ARGV[2] format     the byte that each entry begins with
-- ARGV[3..]          triples, for each entry: its member of the index, its TTL in milliseconds or '', the bytes after its
--                    stamp
-- Entries without a TTL are in the index, so that `clear` can remove them. Generations live at least as long as the
-- longest entry.
-- Returns random members of the index for sweep_entries each time that the index has grown by 64, else none.
-- Errors: none of ours.

local shard, index, keys = KEYS[1], KEYS[2], KEYS
local fresh, format, count = ARGV[1], ARGV[2], (#ARGV - 2) / 3
local GROWN, SAMPLE = 64, 128
local size = redis.call('ZCARD', index)
local current, longest = {}, {}

local function outlive(key, ttl)
  local before = longest[key]
  if not before then
    current[key] = redis.call('GET', key) or fresh
    longest[key] = ttl
  elseif ttl == '' or before ~= '' and tonumber(ttl) > tonumber(before) then
    longest[key] = ttl
  end
end

for number = 1, count do
  local ttl = ARGV[3 * number + 1]
  outlive(shard, ttl)
  outlive(keys[1 + 2 * number], ttl)
end
for number = 1, count do
  local member, ttl, value = ARGV[3 * number], ARGV[3 * number + 1], ARGV[3 * number + 2]
  local generation, entry = keys[1 + 2 * number], keys[2 + 2 * number]
  value = format .. current[generation] .. current[shard] .. value
  if ttl == '' then
    redis.call('SET', entry, value)
    redis.call('ZADD', index, 0, member)
  else
    redis.call('SET', entry, value, 'PX', ttl)
    if size > 0 then redis.call('ZREM', index, member) end
  end
end

-- A deadline moves to twice the TTL, so that most calls leave it alone.
for key, ttl in pairs(longest) do
  local left = redis.call('PTTL', key)
  if left == -2 and ttl == '' then
    redis.call('SET', key, current[key])
  elseif left == -2 then
    redis.call('SET', key, current[key], 'PX', 2 * ttl)
  elseif left >= 0 and ttl == '' then
    redis.call('PERSIST', key)
  elseif left >= 0 and left < tonumber(ttl) then
    redis.call('PEXPIRE', key, 2 * ttl)
  end
end

local now = longest[shard] == '' and redis.call('ZCARD', index) or size
if math.floor(now / GROWN) <= math.floor(size / GROWN) then return {} end
return redis.call('ZRANDMEMBER', index, SAMPLE)
