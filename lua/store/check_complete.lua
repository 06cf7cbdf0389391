-- Checks if a partition has copies of all items.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
--
-- Returns {token, count, checksum} if so: the token in the directory, '' for a partition without items; the number of
-- items, and the sum of their versions modulo 2^50, as text. Else returns {miss}, as get_copies does; or a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired, notes = unpack(KEYS)

--- @include lib/copies

local MORE = 1

local state, reply, micros, now = open_swept(MORE)
if reply then return reply end
local count = state and state.count or 0
local complete = redis.call('HGET', notes, '@complete')
if complete and tonumber(complete) == count then
  return { state and text_of(state.token) or '', complete, text_of(state and state.checksum or 0) }
end
return { name_miss(micros, now) }
