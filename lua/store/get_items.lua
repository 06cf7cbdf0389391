-- Reads items of one partition by their fields.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7..] documents hashes      <prefix>:store:documents:{<partition>}:<item>, of the items in their order; none where they have none
-- ARGV[1] token       of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   until when the directory keeps it, in milliseconds; '0': for ever
-- ARGV[3] refresh     0: no; 1: begin the TTLs of these items anew; 2: that, and answer no records
-- ARGV[4] known       values that the caller knows: for each the position of its field, the partition's token, and what stands in front of the record, as the
--                     caller saw them ('0', and '0 0 0 ' and the name of the put that stored it and a blank, if it did not); '' for none
-- ARGV[5..]           fields, each once
--
-- A record with the version that the caller saw in a partition with the same token is the one that it saw, and is not even read.
-- Returns the records, without values that are known (nil for an item that is not there), and behind them the partition's token if nothing in it has a TTL; an
-- empty list where no item is, or where none is asked for; or a code, alone or first in a list
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for that TTL, with a token above this one
--   DOCUMENTED     7  the items have documents: name their keys
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local documents = { unpack(KEYS, 7) }
local MORE, NOT_ANNOUNCED, DOCUMENTED = 1, 2, 7
local token, announced, moves, known = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local FIELD = 4 -- the fields begin behind this argument
local WITHOUT_TTLS = '^1 0 %d+ %d+ %d+ (%d+) ' -- the state of a partition in which nothing has a TTL, with its token
local found

-- The records without those values that the caller knows.
local function without_values()
  for position, put in string.gmatch(known, '(%d+) %d+ %d+ %d+ %d+ (%x+) ') do
    local i = tonumber(position)
    local head, made_by = string.match(found[i] or '', '^(%d+ %d+ %d+ (%x+) )')
    if made_by == put then found[i] = head end
  end
  return found
end

if known ~= '' then
  local there = string.match(redis.call('HGET', items, '@state') or '', WITHOUT_TTLS)
  if there then
    found = {}
    for position, seen, head, version in string.gmatch(known, '(%d+) (%d+) (%d+ (%d+) %d+ %x+ )') do
      local i = tonumber(position)
      if seen == there and tonumber(redis.call('ZSCORE', order, ARGV[FIELD + i]) or '') == tonumber(version) then found[i] = head end
    end
    for i = 1, #ARGV - FIELD do
      if found[i] == nil then found[i] = redis.call('HGET', items, ARGV[FIELD + i]) end
    end
    without_values()
    found[#found + 1] = there
    return found
  end
end

found = redis.call('HMGET', items, '@state', unpack(ARGV, 5))
local text = table.remove(found, 1)
local there = string.match(text or '', WITHOUT_TTLS)
if there then -- the common case
  if moves == '2' then return {} end
  found[#found + 1] = there
  return found
end

--- @include lib/partition
--- @include lib/refresh
--- @include lib/documents

local state, problem = open_partition(items, order, expiring, namespaces, vectors, text)
if problem then return problem end
if not state then return {} end
local _, now = clock()
local more, gone = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
if more then return MORE end
if state.count == 0 then return {} end
if gone > 0 then found = redis.call('HMGET', items, unpack(ARGV, 5)) end
if moves ~= '0' then
  if not documents[1] and documents_of(items, state) then return DOCUMENTED end
  local fields = { unpack(ARGV, 5) }
  local wanted = refresh(items, order, expiring, namespaces, vectors, retired, state, now, token, announced, fields, found)
  if wanted then return { NOT_ANNOUNCED, string.format('%.0f', state.token), wanted } end
  for i, document in ipairs(documents) do
    local _, _, ttl = head_of(found[i] or '')
    if ttl and ttl ~= '0' then redis.call('PEXPIREAT', document, string.format('%.0f', now + ttl)) end
  end
end
return moves == '2' and {} or without_values()
