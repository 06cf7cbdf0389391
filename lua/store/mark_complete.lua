-- Marks a partition as complete: it has copies of all items. Does nothing if a writer wrote one since a miss, or is
-- writing one.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- KEYS[8] noted       sorted set  <prefix>:store:{<partition>}:noted
-- ARGV[1] miss        as get_copies returned it, before the cold store listed all items
-- ARGV[2..]           the fields of all items that cold has, each once
-- Returns {'1'} if the partition is complete, else {'0'}. Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: OTHERKEY, PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired, notes, noted = unpack(KEYS)
local MORE = 1
local miss, wanted = ARGV[1], #ARGV - 1
local LOOKED_AT = 1000 -- maximum number of notes that are read

--- @include lib/copies

local state, reply, _, now = open_plain(MORE)
if reply then return reply end
local last = change_of_miss(miss, now)
local count = state and state.count or 0
if not last or redis.call('HGET', notes, '@last') ~= text_of(last) or count ~= wanted then return { '0' } end
local own = 0
for _, about in ipairs(redis.call('HMGET', notes, '@born', '@last', '@kept', '@complete')) do
  if about then own = own + 1 end
end
if redis.call('ZCARD', noted) < redis.call('HLEN', notes) - own then -- `noted` was evicted: let the notes expire later
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
