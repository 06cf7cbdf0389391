-- Says whether there are copies of all items of a partition.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
--
-- Returns {token, count, checksum} if so: of the partition in the directory, '' if it has no item; how many items it has, and the sum of all versions modulo
-- 2^50, as text. Else {miss}, as get_copies does. Or a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

--- @include lib/partition
--- @include lib/refresh
--- @include lib/copies

local items, order, expiring, namespaces, vectors, retired, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local MORE = 1

local state, problem = open_partition(items, order, expiring, namespaces, vectors, redis.call('HGET', items, '@state'))
if problem then return problem end
local micros, now = clock()
if state then
  local more = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
  if more then return MORE end
  if state.count == 0 then state = nil end
end
local complete = redis.call('HGET', notes, '@complete')
if complete and tonumber(complete) == (state and state.count or 0) then
  return { state and text_of(state.token) or '', complete, text_of(state and state.checksum or 0) }
end
return { name_miss(notes, micros, now) }
