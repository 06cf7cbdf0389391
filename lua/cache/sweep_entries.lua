-- Removes invalid entries of one shard, and members of the index whose entries are gone.
--
-- KEYS[1] shard      string      <prefix>:cache:{<shard>}:generation: the shard's generation
-- KEYS[2] index      sorted set  <prefix>:cache:{<shard>}:index
-- KEYS[3..]          pairs of strings, for each entry: its namespace's generation, the entry
-- ARGV[1..]          the entries' members of the index
-- Returns the number of removed members.
-- Errors: none of ours.

local shard, index, keys, members = KEYS[1], KEYS[2], KEYS, ARGV

local removed = 0
local of_shard = redis.call('GET', shard)
for number, member in ipairs(members) do
  local generation, entry = keys[1 + 2 * number], keys[2 + 2 * number]
  local of_namespace = redis.call('GET', generation)
  local stamp = of_shard and of_namespace and of_namespace .. of_shard
  if not stamp or redis.call('GETRANGE', entry, 1, #stamp) ~= stamp then
    redis.call('UNLINK', entry)
    removed = removed + redis.call('ZREM', index, member)
  end
end
return removed
