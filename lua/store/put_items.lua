-- Stores and deletes items of one partition: all of them, or none.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] token       of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   until when the directory keeps it, in milliseconds; '0': for ever
-- ARGV[3..]           six for each item, each item once: its field; the version it has to have ('0': none, '': any); its TTL in milliseconds
--                     ('0': none); 16 hex digits that name this put; its value (a frame of the type, then the bytes), '' to delete it; its vectors
--                     (how many dimensions, a frame of the type, the bytes), '' for none
--
-- The version of what is stored is the server's clock in microseconds, or one more than the last one. An item that this very put has stored is left as it
-- is, so a request may be sent twice.
-- Returns 0, or a list that begins with a code
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for that TTL, with a token above this one
--   CONFLICT       3  (position, version) the item at that position has this version
--   EMPTIED        4  (token) done, and the partition has no item left: give that token back to the directory
-- Errors: PARTITION, UNSUPPORTED.

--- @include lib/partition
--- @include lib/refresh

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MORE, NOT_ANNOUNCED, CONFLICT, EMPTIED = 1, 2, 3, 4
local token, announced = ARGV[1], ARGV[2]
local FIRST, EACH = 3, 6

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

-- Check, before anything is written.
local longest, is_put = 0, false
for i = 1, #fields do
  local at = FIRST + (i - 1) * EACH
  local expected, ttl, put, value = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local _, version, _, made_by = head_of(found[i + 1] or '')
  if found[i + 1] and not version then return redis.error_reply('PARTITION a record of ' .. items .. ' cannot be read') end
  if expected ~= '' and made_by ~= put and (version or '0') ~= expected then return { CONFLICT, i, version or '0' } end
  if value ~= '' then
    is_put = true
    if ttl == '0' then longest = math.huge else longest = math.max(longest, tonumber(ttl)) end
  end
end
local wanted = longest == math.huge and '0' or string.format('%.0f', longest)
if not state then
  if not is_put then return 0 end
  local last_token, last_version = string.match(redis.call('GET', retired) or '0 0', '^(%d+) (%d+)$')
  if not last_token then return redis.error_reply('PARTITION the key ' .. retired .. ' cannot be read') end
  if token == '' or tonumber(token) <= tonumber(last_token) then return { NOT_ANNOUNCED, last_token, wanted } end
  state = { first = 0, last = tonumber(last_version), count = 0, checksum = 0, token = 0, announced = tonumber(announced), ttls = 0, deadline = 0,
    spaces = 0, deep = 0, indexed = 0 }
end
take_announcement(state, token, announced)
if is_put and state.announced > 0 and now + longest + SKEW > state.announced then
  return { NOT_ANNOUNCED, string.format('%.0f', state.token), wanted }
end

-- Build and commit.
local changed, versions, deadlines, lasting, removed, embedded, plain = {}, {}, {}, {}, {}, {}, {}
for i, field in ipairs(fields) do
  local at = FIRST + (i - 1) * EACH
  local ttl, put, value, old = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], found[i + 1]
  local created, version, old_ttl, made_by = head_of(old or '')
  if value == '' then
    if old then removed[#removed + 1] = field end
  elseif made_by ~= put then
    state.last = math.max(micros, state.last + 1)
    local new = string.format('%.0f', state.last)
    changed[#changed + 1] = field
    changed[#changed + 1] = (created or new) .. ' ' .. new .. ' ' .. ttl .. ' ' .. put .. ' ' .. value
    versions[#versions + 1] = new
    versions[#versions + 1] = field
    if ARGV[at + 5] ~= '' then
      embedded[#embedded + 1] = field
      embedded[#embedded + 1] = ARGV[at + 5]
    elseif old then
      plain[#plain + 1] = field
    end
    state.checksum = (state.checksum - (version or 0) + state.last) % CHECKSUM
    if not old then
      state.count = state.count + 1
      count_namespace(namespaces, state, field, 1)
    end
    if ttl ~= '0' then
      local deadline = now + ttl
      deadlines[#deadlines + 1] = string.format('%.0f', deadline)
      deadlines[#deadlines + 1] = field
      if state.first == 0 or deadline < state.first then state.first = deadline end
      if not old or old_ttl == '0' then
        state.ttls = state.ttls + 1
        if state.ttls == 1 then state.deadline = -1 end -- the key is new
      end
    elseif old and old_ttl ~= '0' then
      lasting[#lasting + 1] = field
      state.ttls = state.ttls - 1
    end
  end
end
if versions[1] then redis.call('ZADD', order, unpack(versions)) end
if deadlines[1] then redis.call('ZADD', expiring, unpack(deadlines)) end
if lasting[1] then redis.call('ZREM', expiring, unpack(lasting)) end
if plain[1] and state.indexed > 0 then state.indexed = state.indexed - redis.call('HDEL', vectors, unpack(plain)) end
if embedded[1] then
  if state.indexed == 0 then state.deadline = -1 end -- the key is new
  state.indexed = state.indexed + redis.call('HSET', vectors, unpack(embedded))
end
if removed[1] then remove_items(items, order, expiring, namespaces, vectors, state, removed) end
if not changed[1] and not removed[1] then return 0 end
commit(items, order, expiring, namespaces, vectors, retired, state, changed)
return state.count == 0 and { EMPTIED, string.format('%.0f', state.token) } or 0
