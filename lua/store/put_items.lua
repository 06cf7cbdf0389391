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
-- ARGV[3] key         the caller's data key, for the field @key: its id of 16 bytes, and the wrapped key; '' if the
--                     caller does not encrypt, or only deletes
-- ARGV[4] field       field of an item
-- ARGV[5] expected    the version that it must have, '0' if it must not exist, '' for any
-- ARGV[6] ttl         its TTL in milliseconds; '0' for none
-- ARGV[7] put         16 hex digits that name this put
-- ARGV[8] value       a frame of the serializer's type, then its bytes; '' to delete the item
-- ARGV[9] vectors     the number of dimensions, a frame of the serializer's type, its bytes. '' for none, 'keep' for
--                     those that the item has (callers that encrypt send them sealed for this put instead)
-- ARGV[10..]          the same six for each other item, each item once. Then the tags of each document, if any
-- The version of a stored item is the server's time in microseconds, or one more than the last version. An item that
-- this put has already stored stays, so a request may be sent twice. `@compared` holds the last 16 requests that expect
-- versions, by their first puts. If one of them is sent again after others put the item, it changes nothing. Removing
-- the last item of the partition also removes `@compared`.
-- Returns 0, or a list that begins with a code
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token
--   CONFLICT       3  (position, version) the item at this position has this version
--   EMPTIED        4  (token) done, and the partition has no items: give this token back to the directory
--   DOCUMENTED     7  the items have documents: name their keys
--   OTHER_KEY      8  the partition has another data key, or only one of the partition and the caller has one
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: confirmed.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local documents = { unpack(KEYS, 7) }
local MORE, NOT_ANNOUNCED, CONFLICT, EMPTIED, DOCUMENTED, OTHER_KEY = 1, 2, 3, 4, 7, 8
local token, announced, key = ARGV[1], ARGV[2], ARGV[3]
local FIRST, EACH, MANY = 4, 6, (#ARGV - 3) / (documents[1] and 7 or 6)
local KEEP = 'keep'

-- Remembers a request that expects versions.
local function remember()
  local puts = (redis.call('HGET', items, '@compared') or '') .. ARGV[7] .. ' '
  redis.call('HSET', items, '@compared', string.sub(puts, -16 * 17))
end

-- The common case: one item without TTL and vectors, in an existing partition whose items have none either. Any other
-- case continues below.
if #ARGV == 9 and token == '' and ARGV[6] == '0' and ARGV[8] ~= '' and (ARGV[9] == '' or ARGV[9] == KEEP) then
  local field, expected, put = ARGV[4], ARGV[5], ARGV[7]
  local text, old = unpack(redis.call('HMGET', items, '@state', field))
  local pattern = '^([12]) 0 (%d+) (%d+) (%d+) (%d+ 0 0 0 %d+ %d+ 0)$'
  local format, last, count, checksum, rest = string.match(text or '', pattern)
  local created, version, made_by = string.match(old or '', '^(%d+) (%d+) 0 (%x+) ')
  local stored = format == '2' and (redis.call('HGET', items, '@key') or ' ') or ''
  local is_same_key = string.sub(stored, 1, 16) == string.sub(key, 1, 16)
  local is_sound = rest and is_same_key and #last <= 16 and #count <= 15 and #checksum <= 16
  local is_known = created and #created <= 16 and #version <= 16 or not old and string.find(field, '%z') == #field
  local is_expected = (expected == '' or expected == (version or '0')) and made_by ~= put
  if is_sound and is_known and is_expected and redis.call('ZCARD', order) == tonumber(count) then
    local now = redis.call('TIME')
    local new = math.max(now[1] * 1000000 + now[2], last + 1)
    local new_text = string.format('%.0f', new)
    local sum = (checksum - (version or 0) + new) % 2 ^ 50
    local state = string.format('%s 0 %.0f %.0f %.0f ', format, new, count + (old and 0 or 1), sum) .. rest
    redis.call('ZADD', order, new_text, field)
    local record = (created or new_text) .. ' ' .. new_text .. ' 0 ' .. put .. ' ' .. ARGV[8]
    redis.call('HSET', items, field, record, '@state', state)
    if expected ~= '' then remember() end
    return 0
  end
end

--- @include lib/store_items
--- @include lib/documents
--- @include lib/unwritten

local fields, is_put = {}, false
for i = 1, MANY do
  fields[i] = ARGV[FIRST + (i - 1) * EACH]
  is_put = is_put or ARGV[FIRST + (i - 1) * EACH + 4] ~= ''
end
local state, reply, micros, now = open_swept({ MORE }, nil, nil, is_put)
if reply then return reply end
local mark = state and documents_of(state)
if mark and not documents[1] then return { DOCUMENTED } end

-- Check, before anything is written.
local records, longest, is_compared = redis.call('HMGET', items, unpack(fields)), 0, false
local is_other_key = has_other_key(state, key)
for i = 1, MANY do
  local at = FIRST + (i - 1) * EACH
  local expected, ttl, put, value = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local _, version, _, made_by = head_of(records[i] or '')
  if is_other_key and value ~= '' then return unwritten({ OTHER_KEY }) end
  if records[i] and not version then
    return redis.error_reply('PARTITION a record cannot be read')
  end
  if expected ~= '' and made_by ~= put and (version or '0') ~= expected then
    local is_known = string.find(redis.call('HGET', items, '@compared') or '', ARGV[7] .. ' ', 1, true)
    return unwritten(is_known and 0 or { CONFLICT, i, version or '0' })
  end
  is_compared = is_compared or expected ~= ''
  if value ~= '' then
    if ttl == '0' then longest = math.huge else longest = math.max(longest, tonumber(ttl)) end
  end
end
if is_put then
  state, reply = prepare(state, key, token, announced, longest, now)
  if reply then return reply end
elseif state then
  take_announcement(state, token, announced)
else
  return unwritten(0)
end

-- Build and commit.
local removed, is_stored, vectors_of = {}, {}, {}
local has_documents = documents[1] and (mark or state.indexed == 0) -- else document_items has not begun yet
for i, field in ipairs(fields) do
  local at = FIRST + (i - 1) * EACH
  local ttl, put, value, its_vectors = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  local created, old_version, old_ttl, made_by = head_of(records[i] or '')
  if value == '' then
    if records[i] then removed[#removed + 1] = field end
  elseif made_by ~= put then
    local version = math.max(micros, state.last + 1)
    if its_vectors == KEEP then its_vectors = records[i] and redis.call('HGET', vectors, field) or '' end
    vectors_of[i] = its_vectors
    add(state, field, version, created, ttl, now + ttl, put, value, its_vectors, old_version, old_ttl)
    is_stored[i] = true
  end
end
store(state)
if removed[1] then remove_items(state, removed) end
if has_documents then
  for i, document in ipairs(documents) do
    local _, _, ttl, _, value = unpack(ARGV, FIRST + (i - 1) * EACH, FIRST + i * EACH - 1)
    if is_stored[i] and vectors_of[i] ~= '' then
      local tags = ARGV[FIRST + MANY * EACH + i - 1]
      mark = marked(mark, write_document(document, tags, vectors_of[i], ttl, now + ttl))
    elseif is_stored[i] or value == '' then
      redis.call('UNLINK', document)
    end
  end
  if embedded[1] then changed[#changed + 1], changed[#changed + 2] = '@documents', mark end
end
if not changed[1] and not removed[1] then return unwritten(0) end
commit(state, changed)
if is_compared and state.count > 0 then remember() end
return state.count == 0 and { EMPTIED, text_of(state.token) } or 0
