-- Reads copies of a cold store's items, or checks if a partition has copies of all. Names a miss, so that a fill can be
-- refused if a writer writes meanwhile.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- ARGV[1..]           fields; none to check if the partition has copies of all items
-- Returns {miss, record, ...}: the name of the miss, '' if there is none; the record of each field, nil if there is no
-- copy. Without fields it returns {token, count, checksum} if all copies are there: the token in the directory, '' for
-- a partition without items; the number of items, and the sum of their versions modulo 2^50, as text. Else {miss}. Or
-- returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired, notes = unpack(KEYS)
local MORE = 1

--- @include lib/copies

local found = redis.call('HMGET', items, '@state', unpack(ARGV))
local text = table.remove(found, 1)
local first = tonumber(string.match(text or '1 0 ', '^1 (%d+) ') or '')
local micros, now = clock()
if #ARGV == 0 or not first or first > 0 and now >= first then -- something has expired, or the state cannot be read
  local state, reply = open_swept(MORE)
  if reply then return reply end
  local complete = #ARGV == 0 and redis.call('HGET', notes, '@complete')
  if complete and tonumber(complete) == (state and state.count or 0) then
    return { state and text_of(state.token) or '', complete, text_of(state and state.checksum or 0) }
  end
  found = #ARGV > 0 and redis.call('HMGET', items, unpack(ARGV)) or {}
end

local miss, is_whole = '', #ARGV > 0
for i = 1, #found do is_whole = is_whole and found[i] end
if not is_whole then miss = name_miss(micros, now) end
table.insert(found, 1, miss)
return found
