-- Counts the items of each namespace of a partition.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] cursor      cursor of the reply before; '0' to begin
-- Returns {cursor, own, labels, count, ...}, or an empty list if there is no such partition
--   cursor  the next cursor, '0' at the end
--   own     the count of the partition's own namespace
--   labels  the labels of another namespace after the partition's two. Some namespaces come twice
--   count   its count
-- Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local MORE = 1
local cursor = ARGV[1]

--- @include lib/partition

local state, reply = open_swept(MORE, {})
if not state then return reply end
local answer = { '0', state.count - state.deep }
if state.spaces > 0 then
  local page = redis.call('HSCAN', namespaces, cursor, 'COUNT', 1000)
  answer[1] = '' .. page[1] -- the embedded server has a number here, which would be a code
  for i = 1, #page[2] do answer[i + 2] = page[2][i] end
end
return answer
