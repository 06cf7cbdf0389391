-- Reads items of one partition by their fields.
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
-- ARGV[3] refresh     '1' to restart the TTLs of these items, '2' to do only that and return no records, else '0'
-- ARGV[4..]           fields, each once
-- Returns the record of each field, nil if there is no such item. Then follows '1' if nothing in the partition has a
-- TTL. Returns an empty list if there is no such partition, or if refresh is 2. Or returns a code, alone or first in a
-- list
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token
--   DOCUMENTED     7  the items have documents: name their keys
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local documents = { unpack(KEYS, 7) }
local MORE, NOT_ANNOUNCED, DOCUMENTED = 1, 2, 7
local token, announced, refreshes = ARGV[1], ARGV[2], ARGV[3]
local WITHOUT_TTLS = '^[12] 0 %d+ %d+ %d+ %d+ ' -- the state of a partition in which nothing has a TTL

local records = redis.call('HMGET', items, '@state', unpack(ARGV, 4))
local text = table.remove(records, 1)
if string.find(text or '', WITHOUT_TTLS) then -- the common case
  if refreshes == '2' then return {} end
  records[#records + 1] = '1'
  return records
end

--- @include lib/refresh
--- @include lib/documents

local state, reply, _, now, gone = open_swept(MORE, {}, text)
if not state then return reply end
if gone > 0 then records = redis.call('HMGET', items, unpack(ARGV, 4)) end
if refreshes ~= '0' then
  if not documents[1] and documents_of(state) then return DOCUMENTED end
  local wanted = refresh(state, now, token, announced, { unpack(ARGV, 4) }, records)
  if wanted then return { NOT_ANNOUNCED, text_of(state.token), wanted } end
  for i, document in ipairs(documents) do
    local _, _, ttl = head_of(records[i] or '')
    if ttl and ttl ~= '0' then redis.call('PEXPIREAT', document, text_of(now + ttl)) end
  end
end
return refreshes == '2' and {} or records
