-- Reads items of one partition with their vectors, after the server's own index found them.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1..]           fields, each once; or none
--
-- Returns {documents, indexed, record, vectors, ...}: the field `@documents`, '' if there is none; the number of items
-- with vectors; the record and the vectors of each item, '' for each that is missing. Returns an empty list if there is
-- no such partition; or a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

--- @include lib/partition
--- @include lib/documents

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MORE = 1

local state, reply = open_swept(items, order, expiring, namespaces, vectors, retired, MORE, {})
if not state then return reply end
local answer = { documents_of(items, state) or '', state.indexed }
for _, field in ipairs(ARGV) do
  answer[#answer + 1] = redis.call('HGET', items, field) or ''
  answer[#answer + 1] = redis.call('HGET', vectors, field) or ''
end
return answer
