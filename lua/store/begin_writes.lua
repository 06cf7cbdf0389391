-- Begins to write items to a cold store: their copies go, and until the writer ends nobody fills them. Sent twice, it does the same.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- KEYS[8] noted       sorted set  <prefix>:store:{<partition>}:noted
-- ARGV[1] writer      16 hex digits that name this write
-- ARGV[2..]           the fields of the items, each once
--
-- Returns {change, left}, for end_writes: the number of this change; if there were copies of all items of the partition, how many are left, else ''. Or a
-- code
--   MORE  1  more has expired than one call removes: call again
-- Errors: KEYCONFLICT, PARTITION, UNSUPPORTED.
-- Rules: confirmed.

--- @include lib/partition
--- @include lib/refresh
--- @include lib/copies

local items, order, expiring, namespaces, vectors, retired, notes, noted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local MORE = 1
local writer = ARGV[1]

local state, problem = open_partition(items, order, expiring, namespaces, vectors, redis.call('HGET', items, '@state'))
if problem then return problem end
local micros, now = clock()
if state then
  local more = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
  if more then return MORE end
  if state.count == 0 then state = nil end
end
local fields, writers = { unpack(ARGV, 2) }, {}
local complete = redis.call('HGET', notes, '@complete')
local is_complete = complete and tonumber(complete) == (state and state.count or 0)
if state then
  state, problem = remove_copies(items, order, expiring, namespaces, vectors, retired, notes, state, fields, now)
  if problem then return problem end
end
redis.call('HDEL', notes, '@complete')
local left = is_complete and text_of(state and state.count or 0) or ''
local about = redis.call('HMGET', notes, unpack(fields))
for i = 1, #fields do
  local _, others = read_note(about[i] or '', writer, now)
  writers[i] = others .. ' ' .. writer .. ' ' .. text_of(now + INTENT)
end
return { text_of(note_changes(notes, noted, fields, writers, micros, now)), left }
