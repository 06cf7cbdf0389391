-- Makes documents for items with vectors that were put before the store had documents.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7..] documents hashes      <prefix>:store:documents:{<partition>}:<item>
-- ARGV[1] mark        new value of `@documents`:
--                       at the beginning '0', so that all puts make documents, too
--                       then ''
--                       at the end the number of dimensions, a space, the maximum number of vectors per item
-- ARGV[2] dims        number of dimensions that the vectors must have
-- ARGV[3..]           the field of the item of each document, in their order. Then the tags of each
-- Returns {made, most, field, ...}
--   made   the number of documents that were made, as text
--   most   the maximum number of vectors of one, as text
--   field  the field of an item that has other vectors
-- Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: OTHERKEY, PARTITION, UNSUPPORTED.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local documents = { unpack(KEYS, 7) }
local MORE = 1
local mark, wanted = ARGV[1], ARGV[2]

--- @include lib/partition
--- @include lib/documents

local full = no_room()
if full then return full end
local state, reply = open_plain(MORE, { '0', '0' })
if not state then return reply end
if state.indexed == 0 then return { '0', '0' } end
if mark ~= '' then redis.call('HSET', items, '@documents', mark) end
local made, most, answer = 0, 0, { '', '' }
for i, document in ipairs(documents) do
  local field, under = ARGV[2 + i], ARGV[2 + #documents + i]
  local stored = redis.call('HGET', vectors, field)
  if stored then
    local deadline = redis.call('ZSCORE', expiring, field)
    local dims, count = write_document(document, under, stored, deadline or '0', deadline)
    if dims == wanted then
      made, most = made + 1, math.max(most, count)
    else
      answer[#answer + 1] = field
    end
  end
end
answer[1], answer[2] = string.format('%d', made), string.format('%d', most)
return answer
