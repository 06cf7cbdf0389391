-- Lists a partition's items above a version, oldest first, to bring a mirror up to date or to measure namespaces.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] above       a version; '0' for all
-- ARGV[2] what        records, vectors (records and vectors), versions (no records), or sizes (versions and bytes)
-- Returns {token, count, checksum, is_last, field, record, ...}, or an empty list if there is no such partition
--   token     the partition's token
--   count     the number of its items
--   checksum  the sum of all versions modulo 2^50
--   is_last   1 if no more items follow, else 0
--   record    the record (or version) of an item, followed by its vectors if asked for ('' for none). For sizes: the
--             version, a space, and the bytes of the record and the vectors
-- Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local MORE = 1
local above, is_indexed, is_sized = ARGV[1], ARGV[2] == 'vectors', ARGV[2] == 'sizes'
local is_whole = is_indexed or ARGV[2] == 'records'
local PAGE, BYTES = is_whole and 1000 or 4000, 1000000 -- maximum number of items, and of bytes, of a reply

--- @include lib/partition

local state, reply = open_swept(MORE, {})
if not state then return reply end

local page = { text_of(state.token), state.count, text_of(state.checksum), 1 }
local some = redis.call('ZRANGEBYSCORE', order, '(' .. above, '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE)
if #some == 2 * PAGE then page[4] = 0 end
local bytes = 0
for i = 1, #some, 2 do
  local record = some[i + 1]
  if is_whole then record = redis.call('HGET', items, some[i]) end
  if is_sized then
    record = record .. ' ' .. redis.call('HSTRLEN', items, some[i]) + redis.call('HSTRLEN', vectors, some[i])
  end
  if not record then return redis.error_reply('PARTITION a record is gone') end
  page[#page + 1], page[#page + 2] = some[i], record
  bytes = bytes + #some[i] + #record
  if is_indexed then
    page[#page + 1] = state.indexed > 0 and redis.call('HGET', vectors, some[i]) or ''
    bytes = bytes + #page[#page]
  end
  if bytes > BYTES and i + 1 < #some then
    page[4] = 0
    break
  end
end
return page
