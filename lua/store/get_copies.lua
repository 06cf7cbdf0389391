-- Reads copies of a cold store's items, or checks if a partition has copies of all. Names a miss, so that fill_copies
-- can refuse items that a writer has written since.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- ARGV[1..]           fields; none to check if the partition has copies of all items
-- Returns {miss, record, ...}
--   miss      the name of the miss, '' if all copies are there
--   record    the record of each field, nil if there is no copy
-- Without fields it returns {miss}, or {token, count, checksum} if the partition has copies of all
--   token     its token in the directory, '' for a partition without items
--   count     the number of its items, as text
--   checksum  the sum of their versions modulo 2^50, as text
-- Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: OTHERKEY, PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired, notes = unpack(KEYS)
local MORE = 1

-- The common case: there are copies of all fields, and nothing has expired. Any other case continues below.
local answer, time = redis.call('HMGET', items, '@state', unpack(ARGV)), redis.call('TIME')
local first = tonumber(string.match(answer[1] or '', '^1 (%d+) ') or '')
local is_whole = #ARGV > 0 and first and (first == 0 or (time[1] + 1) * 1000 < first)
for i = 2, #answer do is_whole = is_whole and answer[i] end
answer[1] = ''
if is_whole then return answer end

--- @include lib/copies

local state, reply, micros, now = open_plain(MORE)
if reply then return reply end
if #ARGV == 0 then
  local complete, count = redis.call('HGET', notes, '@complete'), state and state.count or 0
  if not complete or tonumber(complete) ~= count then return { name_miss(micros, now) } end
  return { state and text_of(state.token) or '', complete, text_of(state and state.checksum or 0) }
end
answer = { '', unpack(redis.call('HMGET', items, unpack(ARGV))) }
for i = 2, #ARGV + 1 do
  if not answer[i] and answer[1] == '' then answer[1] = name_miss(micros, now) end
end
return answer
