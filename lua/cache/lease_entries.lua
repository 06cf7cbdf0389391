-- Takes leases on entries of one shard that are missing: on all of them, or on none.
--
-- KEYS[1] shard      string  <prefix>:cache:{<shard>}:generation: the shard's generation
-- KEYS[2..]          triples of strings, for each entry: its namespace's generation, the entry, its lease
-- ARGV[1] token      what the leases will hold
-- ARGV[2] duration   milliseconds
-- ARGV[3..]          tokens of leases that the caller holds already: these stay as they are
--
-- Returns a list: a code, then for each entry its value with the stamp, or nil where there is no valid one. The codes:
--   HELD    0  somebody else has a lease on a missing entry, and none was taken
--   LEASED  1  the caller holds the leases on all missing entries
-- Errors: none of ours.

local shard, keys = KEYS[1], KEYS
local token, duration = ARGV[1], ARGV[2]
local HELD, LEASED = 0, 1

local own, free, found = { [token] = true }, {}, { LEASED } -- the same call may come twice
for i = 3, #ARGV do own[ARGV[i]] = true end

local of_shard = redis.call('GET', shard)
for i = 2, #keys, 3 do
  local of_namespace, value = redis.call('GET', keys[i]), redis.call('GET', keys[i + 1])
  local stamp = of_shard and of_namespace and of_namespace .. of_shard
  local valid = value and stamp and string.sub(value, 2, 1 + #stamp) == stamp
  found[#found + 1] = valid and value
  if not valid then
    local holder = redis.call('GET', keys[i + 2])
    if not holder then
      free[#free + 1] = keys[i + 2]
    elseif not own[holder] then
      found[1] = HELD
    end
  end
end
if found[1] == LEASED then
  for _, lease in ipairs(free) do redis.call('SET', lease, token, 'PX', duration) end
end
return found
