-- Reads copies of a cold store's items. Names a miss, so that a fill can be refused if a writer writes meanwhile.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- ARGV[1..]           fields; none to name a miss
--
-- Returns {miss, record, ...}: the name of the miss, '' if there is none; the record of each field, nil if there is no
-- copy. Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired, notes = unpack(KEYS)

--- @include lib/copies

local MORE = 1
local found = redis.call('HMGET', items, '@state', unpack(ARGV))
local text = table.remove(found, 1)
local first = tonumber(string.match(text or '1 0 ', '^1 (%d+) ') or '')
if first ~= 0 then
  local _, moment = clock()
  if not first or moment >= first then -- something has expired, or the state cannot be read
    local state, problem = open_partition(text)
    if problem then return problem end
    local more = sweep(state, moment)
    if more then return MORE end
    found = redis.call('HMGET', items, '@state', unpack(ARGV))
    table.remove(found, 1)
  end
end

local miss, is_whole = '', found[1] ~= nil
for i = 1, #found do is_whole = is_whole and found[i] end
if not is_whole then
  local micros, now = clock()
  miss = name_miss(micros, now)
end
table.insert(found, 1, miss)
return found
