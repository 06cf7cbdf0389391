-- Stores items of one partition as another store had them, with their times and the rest of their TTLs.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7..] documents hashes      <prefix>:store:documents:{<partition>}:<item>, one per item in their order, or none
-- ARGV[1] token       token of an announcement of the partition in the directory, above the partition's; or ''
-- ARGV[2] announced   deadline of its entry in milliseconds; '0' for none
-- ARGV[3] key         the caller's data key, for the field @key: its id of 16 bytes, and the wrapped key; '' if the
--                     caller does not encrypt
-- ARGV[4] field       field of an item
-- ARGV[5] expected    the version that it must have, '0' if it must not exist
-- ARGV[6] created     created_at in microseconds
-- ARGV[7] updated     updated_at in microseconds
-- ARGV[8] ttl         its TTL in milliseconds, '0' for none
-- ARGV[9] deadline    its deadline in milliseconds, '0' for none
-- ARGV[10] put        16 hex digits that name this put
-- ARGV[11] value      its value: a frame of the type, then the bytes
-- ARGV[12..]          the same eight for each other item, each item once
-- The version of an item is its updated_at, or the server's time if that is earlier, so that later puts have greater
-- versions. If another item has that version, it is the next free one. An item with another version than expected
-- stays, and so does one that this put has stored already, because a request may be sent twice. The old vectors of an
-- item are removed. The partition takes the new token, so that no process uses a mirror of it: mirrors are
-- checked by sums of versions, which assume that no put stores an old one.
-- Returns 0, or a list that begins with a code
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token; nothing was stored
--   CONFLICT       3  (position of each) these items have another version; all others were stored
--   DOCUMENTED     7  the items have documents: name their keys
--   OTHER_KEY      8  the partition has another data key, or only one of the partition and the caller has one
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: confirmed.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local documents = { unpack(KEYS, 7) }
local MORE, NOT_ANNOUNCED, CONFLICT, DOCUMENTED, OTHER_KEY = 1, 2, 3, 7, 8
local token, announced, key = ARGV[1], ARGV[2], ARGV[3]
local FIRST, EACH = 4, 8

--- @include lib/store_items
--- @include lib/documents
--- @include lib/unwritten

-- Counts the items with a version from this one to `many - 1` above it. No two items have the same version.
local function count_versions(version, many)
  return redis.call('ZCOUNT', order, text_of(version), text_of(version + many - 1))
end

-- Returns the first free version, starting from this one. `next_free` has the results of earlier calls. Some stores
-- give all items of a batch the same time, so many consecutive versions may be taken. Doubling, then halving the step
-- finds the end of such a run.
local function free_version(next_free, version)
  local free, many = next_free[version] or version, 1
  while count_versions(free, many) >= many do
    free, many = free + many, 2 * many
  end
  while many > 1 do
    many = math.floor(many / 2)
    if count_versions(free, many) >= many then free = free + many end
  end
  next_free[version] = free + 1
  return free
end

local state, reply, micros, now = open_swept({ MORE }, nil, nil, true)
if reply then return reply end
if state and not documents[1] and documents_of(state) then return { DOCUMENTED } end
if has_other_key(state, key) then return unwritten({ OTHER_KEY }) end

-- Check, before anything is written.
local fields = {}
for i = FIRST, #ARGV, EACH do fields[#fields + 1] = ARGV[i] end
local records, chosen, conflicts, longest = redis.call('HMGET', items, unpack(fields)), {}, { CONFLICT }, 0
for i = 1, #fields do
  local _, expected, _, _, ttl, deadline, put = unpack(ARGV, FIRST + (i - 1) * EACH, FIRST + i * EACH - 1)
  local _, version, _, made_by = head_of(records[i] or '')
  if records[i] and not version then
    return redis.error_reply('PARTITION a record cannot be read')
  end
  if made_by ~= put and (version or '0') ~= expected then
    conflicts[#conflicts + 1] = i
  elseif made_by ~= put then
    chosen[#chosen + 1] = i
    longest = math.max(longest, ttl == '0' and math.huge or math.max(deadline - now, 1))
  end
end
if not chosen[1] then return unwritten(conflicts[2] and conflicts or 0) end
state, reply = prepare(state, key, token, announced, longest, now, true)
if reply then return reply end

-- Build and commit.
local next_free = {}
for _, i in ipairs(chosen) do
  local field, _, created, updated, ttl, deadline, put, value =
    unpack(ARGV, FIRST + (i - 1) * EACH, FIRST + i * EACH - 1)
  local version = free_version(next_free, math.min(tonumber(updated), micros))
  redis.call('ZADD', order, text_of(version), field) -- now, because `free_version` looks there
  local _, old_version, old_ttl = head_of(records[i] or '')
  created, deadline = text_of(math.min(tonumber(created), version)), math.max(tonumber(deadline), now + 1)
  add(state, field, version, created, ttl, deadline, put, value, '', old_version, old_ttl)
  if documents[i] then redis.call('UNLINK', documents[i]) end
end
store(state)
commit(state, changed)
return conflicts[2] and conflicts or 0
