-- Reads items of one partition by their fields, with their deadlines, for an export or a comparison. A call answers
-- about a megabyte.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1..]           fields, each once
--
-- Returns the record and the deadline of each item in the order of the fields, until they have about a megabyte. The
-- record is '' if there is no such item; the deadline is in milliseconds, '0' for none. Returns an empty list if there
-- is no such partition; or a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

--- @include lib/partition

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MORE = 1
local BYTES = 1000000

local state, reply = open_swept(items, order, expiring, namespaces, vectors, retired, MORE, {})
if not state then return reply end

local page, bytes = {}, 0
for _, field in ipairs(ARGV) do
  local record = redis.call('HGET', items, field)
  if not record and redis.call('ZSCORE', order, field) then
    return redis.error_reply('PARTITION a record of ' .. items .. ' is gone')
  end
  page[#page + 1], page[#page + 2] = record or '', record and redis.call('ZSCORE', expiring, field) or '0'
  bytes = bytes + #page[#page - 1]
  if bytes > BYTES then break end
end
return page
