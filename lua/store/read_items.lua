-- Reads items of one partition by their fields, with their vectors or deadlines.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] what        vectors, or deadlines
-- ARGV[2..]           fields, each once; or none
-- Returns {documents, indexed, record, detail, ...}, or an empty list if there is no such partition. With deadlines it
-- ends after about a megabyte
--   documents  the field `@documents`, '' if there is none
--   indexed    the number of items with vectors
--   record     the record of an item, in the order of the fields, '' if it is missing
--   detail     its vectors, '' if it has none; or its deadline in milliseconds, '0' for none
-- Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local MORE = 1
local has_vectors, BYTES = ARGV[1] == 'vectors', 1000000

--- @include lib/partition
--- @include lib/documents

local state, reply = open_swept(MORE, {})
if not state then return reply end
local answer, bytes = { documents_of(state) or '', state.indexed }, 0
for i = 2, #ARGV do
  local record = redis.call('HGET', items, ARGV[i])
  if not record and redis.call('ZSCORE', order, ARGV[i]) then
    return redis.error_reply('PARTITION a record is gone')
  end
  answer[#answer + 1] = record or ''
  if has_vectors then
    answer[#answer + 1] = redis.call('HGET', vectors, ARGV[i]) or ''
  else
    answer[#answer + 1] = text_of(record and redis.call('ZSCORE', expiring, ARGV[i]) or 0)
    bytes = bytes + #answer[#answer - 1]
    if bytes > BYTES then break end
  end
end
return answer
