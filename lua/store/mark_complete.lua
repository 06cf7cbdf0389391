-- Notes that there are copies of all items of a partition, unless somebody wrote one since a miss, or writes one now.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- KEYS[8] noted       sorted set  <prefix>:store:{<partition>}:noted
-- ARGV[1] miss        as get_copies or check_complete answered it, before the cold store was asked for all items
-- ARGV[2..]           the fields of all items that it has, each once
--
-- Returns {'1'} if it is so, else {'0'}; or a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

--- @include lib/partition
--- @include lib/refresh
--- @include lib/copies

local items, order, expiring, namespaces, vectors, retired, notes, noted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local MORE = 1
local miss, count = ARGV[1], #ARGV - 1
local LOOKED_AT = 1000 -- notes, at the most

local state, problem = open_partition(items, order, expiring, namespaces, vectors, redis.call('HGET', items, '@state'))
if problem then return problem end
local micros, now = clock()
if state then
  local more = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
  if more then return MORE end
  if state.count == 0 then state = nil end
end
local last = change_of_miss(notes, miss, now)
if not last or redis.call('HGET', notes, '@last') ~= text_of(last) or (state and state.count or 0) ~= count then return { '0' } end
local own = 0
for _, about in ipairs(redis.call('HMGET', notes, '@born', '@last', '@kept', '@complete')) do own = own + (about and 1 or 0) end
if redis.call('ZCARD', noted) < redis.call('HLEN', notes) - own then -- it was evicted: the notes that are still there may go later
  local page = redis.call('HSCAN', notes, '0', 'COUNT', LOOKED_AT)[2]
  for i = 1, #page, 2 do
    if string.sub(page[i], -1) == '\0' then redis.call('ZADD', noted, 'NX', text_of(now + INTENT), page[i]) end
  end
  redis.call('PEXPIRE', noted, NOTES_KEPT)
  return { '0' }
end
local fields = redis.call('ZRANGEBYSCORE', noted, '(' .. text_of(now), '+inf', 'LIMIT', 0, LOOKED_AT)
if #fields == LOOKED_AT then return { '0' } end
for _, note in ipairs(fields[1] and redis.call('HMGET', notes, unpack(fields)) or {}) do
  local _, writers = read_note(note or '', '', now)
  if writers ~= '' then return { '0' } end
end
for i = 2, #ARGV do
  if redis.call('HEXISTS', items, ARGV[i]) == 0 then return { '0' } end
end
redis.call('HSET', notes, '@complete', count)
redis.call('PEXPIRE', notes, NOTES_KEPT)
return { '1' }
