-- Stores and deletes items of one partition, all or none.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7..] documents hashes      <prefix>:store:documents:{<partition>}:<item>, one per item in their order, or none
-- ARGV[1] token       token of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   deadline of its entry in milliseconds; '0' for none
-- ARGV[3] field       field of an item
-- ARGV[4] expected    the version that it must have; '0' if it must not exist; '' for any
-- ARGV[5] ttl         its TTL in milliseconds; '0' for none
-- ARGV[6] put         16 hex digits that name this put
-- ARGV[7] value       a frame of the serializer's type, then its bytes; '' to delete the item
-- ARGV[8] vectors     the number of dimensions, a frame of the serializer's type, its bytes; '' for none
-- ARGV[9..]           the same six for each other item, each item once; then the tags of each document, if any
--
-- The version of a stored item is the server's time in microseconds, or one more than the last version. An item that
-- this put has stored already stays, so a request may be sent twice. If a request expects versions, `@compared`
-- remembers it by its first put. Sent again after others put the item, it changes nothing. It is forgotten after 16
-- more such requests, and with the last item of the partition.
-- Returns 0, or a list that begins with a code
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token
--   CONFLICT       3  (position, version) the item at this position has this version
--   EMPTIED        4  (token) done, and the partition has no items: give this token back to the directory
--   DOCUMENTED     7  the items have documents: name their keys
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: confirmed.

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local documents = { unpack(KEYS, 7) }
local MORE, NOT_ANNOUNCED, CONFLICT, EMPTIED, DOCUMENTED = 1, 2, 3, 4, 7
local token, announced = ARGV[1], ARGV[2]
local FIRST, EACH, MANY = 3, 6, (#ARGV - 2) / (documents[1] and 7 or 6)

-- Remembers a request that expects versions.
local function remember()
  local puts = (redis.call('HGET', items, '@compared') or '') .. ARGV[6] .. ' '
  redis.call('HSET', items, '@compared', string.sub(puts, -16 * 17))
end

local fields = {}
for i = 1, MANY do fields[i] = ARGV[FIRST + (i - 1) * EACH] end
local found = redis.call('HMGET', items, '@state', unpack(fields))

-- The common case: one item without TTL and vectors, in an existing partition in which nothing has any. Any other case
-- continues below.
local last, count, checksum, rest = string.match(found[1] or '', '^1 0 (%d+) (%d+) (%d+) (%d+ 0 0 0 %d+ %d+ 0)$')
local is_plain = #ARGV == 8 and token == '' and ARGV[5] == '0' and ARGV[7] ~= '' and ARGV[8] == ''
if is_plain and rest and #last <= 16 and #count <= 15 and #checksum <= 16 then
  local field, expected, put, old = ARGV[3], ARGV[4], ARGV[6], found[2]
  local created, version, made_by = string.match(old or '', '^(%d+) (%d+) 0 (%x+) ')
  local is_known = created and #created <= 16 and #version <= 16 or not old and string.find(field, '%z') == #field
  local is_expected = expected == '' or expected == (version or '0')
  if is_known and is_expected and made_by ~= put and redis.call('ZCARD', order) == tonumber(count) then
    local now = redis.call('TIME')
    local new = math.max(now[1] * 1000000 + now[2], last + 1)
    local text = string.format('%.0f', new)
    local sum = (checksum - (version or 0) + new) % 2 ^ 50
    local state = string.format('1 0 %.0f %.0f %.0f ', new, count + (old and 0 or 1), sum) .. rest
    redis.call('ZADD', order, text, field)
    local record = (created or text) .. ' ' .. text .. ' 0 ' .. put .. ' ' .. ARGV[7]
    redis.call('HSET', items, field, record, '@state', state)
    if expected ~= '' then remember() end
    return 0
  end
end

--- @include lib/partition
--- @include lib/refresh
--- @include lib/documents

local state, problem = open_partition(items, order, expiring, namespaces, vectors, found[1])
if problem then return problem end
local micros, now = clock()
if state then
  local more, gone = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
  if more then return { MORE } end
  if state.count == 0 then state = nil end
  if gone > 0 then found = redis.call('HMGET', items, '@state', unpack(fields)) end
end
local mark = state and documents_of(items, state)
if mark and not documents[1] then return { DOCUMENTED } end

-- Check, before anything is written.
local longest, is_put, is_compared = 0, false, false
for i = 1, #fields do
  local at = FIRST + (i - 1) * EACH
  local expected, ttl, put, value = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local _, version, _, made_by = head_of(found[i + 1] or '')
  if found[i + 1] and not version then
    return redis.error_reply('PARTITION a record of ' .. items .. ' cannot be read')
  end
  if expected ~= '' and made_by ~= put and (version or '0') ~= expected then
    local is_known = string.find(redis.call('HGET', items, '@compared') or '', ARGV[6] .. ' ', 1, true)
    return is_known and 0 or { CONFLICT, i, version or '0' }
  end
  is_compared = is_compared or expected ~= ''
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
  state = new_state(last_version, announced)
end
take_announcement(state, token, announced)
if is_put and state.announced > 0 and now + longest + SKEW > state.announced then
  return { NOT_ANNOUNCED, string.format('%.0f', state.token), wanted }
end

-- Build and commit.
local changed, versions, deadlines, lasting, removed, embedded, plain, stored = {}, {}, {}, {}, {}, {}, {}, {}
local has_documents = documents[1] and (mark or state.indexed == 0) -- else document_items has not begun yet
for i, field in ipairs(fields) do
  local at = FIRST + (i - 1) * EACH
  local ttl, put, value, old = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], found[i + 1]
  local created, version, old_ttl, made_by = head_of(old or '')
  if value == '' then
    if old then removed[#removed + 1] = field end
  elseif made_by ~= put then
    state.last = math.max(micros, state.last + 1)
    local new = string.format('%.0f', state.last)
    stored[i] = true
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
if has_documents then
  for i, document in ipairs(documents) do
    local at = FIRST + (i - 1) * EACH
    if stored[i] and ARGV[at + 5] ~= '' then
      local tags, ttl = ARGV[FIRST + MANY * EACH + i - 1], ARGV[at + 2]
      mark = marked(mark, write_document(document, tags, ARGV[at + 5], ttl, now + ttl))
    elseif stored[i] or ARGV[at + 4] == '' then
      redis.call('UNLINK', document)
    end
  end
  if embedded[1] then
    changed[#changed + 1] = '@documents'
    changed[#changed + 1] = mark
  end
end
if not changed[1] and not removed[1] then return 0 end
commit(items, order, expiring, namespaces, vectors, retired, state, changed)
if is_compared and state.count > 0 then remember() end
return state.count == 0 and { EMPTIED, string.format('%.0f', state.token) } or 0
