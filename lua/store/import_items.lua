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
-- ARGV[3..]           eight for each item, each item once: its field; the version that it must have ('0' if it must not
--                     exist); created_at and updated_at in microseconds; its TTL in milliseconds ('0' for none); its
--                     deadline in milliseconds ('0' for none); 16 hex digits that name this put; its value (a frame of
--                     the type, then the bytes)
--
-- The version of an item is its updated_at, or the server's time if that is earlier, so that later puts have greater
-- versions. If another item has that version, it is the next free one. An item with another version than expected
-- stays, and so does one that this put has stored already, because a request may be sent twice. The old vectors of an
-- item are removed. The partition takes the new token, so that no process uses cached pages or mirrors of it: these are
-- checked by sums of versions, which assume that no put stores an old one.
-- Returns 0, or a list that begins with a code
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token; nothing was stored
--   CONFLICT       3  (position of each) these items have another version; all others were stored
--   DOCUMENTED     7  the items have documents: name their keys
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: confirmed.

--- @include lib/partition
--- @include lib/refresh
--- @include lib/documents

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local documents = { unpack(KEYS, 7) }
local MORE, NOT_ANNOUNCED, CONFLICT, DOCUMENTED = 1, 2, 3, 7
local token, announced = ARGV[1], ARGV[2]
local FIRST, EACH = 3, 8

-- Counts the items with one of `many` versions from this one on. No two items have the same version.
local function count_versions(order, version, many)
  return redis.call('ZCOUNT', order, string.format('%.0f', version), string.format('%.0f', version + many - 1))
end

-- Returns the first version from this one on that no item has. `next_free` has the results of this call. Some stores
-- give one time to all items of a batch, so many versions in a row may be taken: doubling, then halving finds their
-- end.
local function free_version(order, next_free, version)
  local free, many = next_free[version] or version, 1
  while count_versions(order, free, many) >= many do
    free, many = free + many, 2 * many
  end
  while many > 1 do
    many = many / 2
    if count_versions(order, free, many) >= many then free = free + many end
  end
  next_free[version] = free + 1
  return free
end

local fields = {}
for i = FIRST, #ARGV, EACH do fields[#fields + 1] = ARGV[i] end
local found = redis.call('HMGET', items, '@state', unpack(fields))
local state, problem = open_partition(items, order, expiring, namespaces, vectors, found[1])
if problem then return problem end
local micros, now = clock()
if state then
  local more, gone = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
  if more then return { MORE } end
  if state.count == 0 then state = nil end
  if gone > 0 then found = redis.call('HMGET', items, '@state', unpack(fields)) end
end
if state and not documents[1] and documents_of(items, state) then return { DOCUMENTED } end

-- Check, before anything is written.
local chosen, conflicts, longest = {}, { CONFLICT }, 0
for i = 1, #fields do
  local at = FIRST + (i - 1) * EACH
  local expected, ttl, deadline, put = ARGV[at + 1], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  local _, version, _, made_by = head_of(found[i + 1] or '')
  if found[i + 1] and not version then
    return redis.error_reply('PARTITION a record of ' .. items .. ' cannot be read')
  end
  if made_by ~= put then
    if (version or '0') ~= expected then
      conflicts[#conflicts + 1] = i
    else
      chosen[#chosen + 1] = i
      if ttl == '0' then longest = math.huge else longest = math.max(longest, deadline - now, 1) end
    end
  end
end
if not chosen[1] then return conflicts[2] and conflicts or 0 end
local wanted = longest == math.huge and '0' or string.format('%.0f', longest)
if not state then
  local last_token, last_version = string.match(redis.call('GET', retired) or '0 0', '^(%d+) (%d+)$')
  if not last_token then return redis.error_reply('PARTITION the key ' .. retired .. ' cannot be read') end
  if token == '' or tonumber(token) <= tonumber(last_token) then return { NOT_ANNOUNCED, last_token, wanted } end
  state = new_state(last_version, announced)
end
local is_new = token ~= '' and tonumber(token) > state.token
take_announcement(state, token, announced)
if not is_new or state.announced > 0 and now + longest + SKEW > state.announced then
  return { NOT_ANNOUNCED, string.format('%.0f', state.token), wanted }
end

-- Build and commit.
local changed, next_free = {}, {}
for _, i in ipairs(chosen) do
  local at = FIRST + (i - 1) * EACH
  local field, created, updated, ttl = ARGV[at], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  local deadline, put, value, old = math.max(ARGV[at + 5], now + 1), ARGV[at + 6], ARGV[at + 7], found[i + 1]
  local _, old_version, old_ttl = head_of(old or '')
  local version = free_version(order, next_free, math.min(updated, micros))
  local new = string.format('%.0f', version)
  redis.call('ZADD', order, new, field)
  changed[#changed + 1] = field
  local head = string.format('%.0f', math.min(created, version)) .. ' ' .. new .. ' ' .. ttl .. ' ' .. put .. ' '
  changed[#changed + 1] = head .. value
  state.last = math.max(state.last, version)
  state.checksum = (state.checksum - (old_version or 0) + version) % CHECKSUM
  if not old then
    state.count = state.count + 1
    count_namespace(namespaces, state, field, 1)
  elseif state.indexed > 0 then
    state.indexed = state.indexed - redis.call('HDEL', vectors, field)
    if documents[i] then redis.call('UNLINK', documents[i]) end
  end
  if ttl ~= '0' then
    redis.call('ZADD', expiring, string.format('%.0f', deadline), field)
    if state.first == 0 or deadline < state.first then state.first = deadline end
    if not old or old_ttl == '0' then
      state.ttls = state.ttls + 1
      if state.ttls == 1 then state.deadline = -1 end -- the key is new
    end
  elseif old and old_ttl ~= '0' then
    redis.call('ZREM', expiring, field)
    state.ttls = state.ttls - 1
  end
end
commit(items, order, expiring, namespaces, vectors, retired, state, changed)
return conflicts[2] and conflicts or 0
