-- Reads the state of a thread as a whole. It is the first and the last step of check.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[5] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] most       maximum number of dirty records to look at for refusals
--
-- Returns a list, or nil if there is no such thread.
--   state     @state as stored
--   expiry    milliseconds until the index expires, then until the data expire, -1 for never
--   sizes     number of members of the index, then of fields of the data
--   lacking   number of dirty records: those that cold lacks
--   kept      milliseconds until the key of these records expires, -1 for never, -2 without the key
--   age       milliseconds since the oldest open write intent began, -1 without one
--   refused   flat list of (member, note) of records that cold refused
--   marks     @cold_backed, @complete, @cold_gaps, '1' if there is @deferred_ttl. '' for each that is missing
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread

local index, data, intents, dirty, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local most = tonumber(ARGV[1])
local meta, problem, found = open_thread(index, data, '@cold_backed', '@complete', '@cold_gaps')
if problem then return problem end
if not meta then return false end

local clock, age = redis.call('TIME'), -1
local oldest = redis.call('ZRANGEBYLEX', intents, '-', '+', 'LIMIT', 0, 1)[1]
if oldest then age = clock[1] * 1000 + math.floor(clock[2] / 1000) - (tonumber(string.sub(oldest, 1, 15)) or 0) end
local refused = {}
for _, member in ipairs(redis.call('ZRANGE', dirty, 0, most - 1)) do
  local noted = redis.call('HGET', flush, 'x' .. member)
  if noted then
    refused[#refused + 1], refused[#refused + 2] = member, noted
  end
end
return {
  found[1], redis.call('PTTL', index), redis.call('PTTL', data), redis.call('ZCARD', index), redis.call('HLEN', data),
  redis.call('ZCARD', dirty), redis.call('PTTL', dirty), age, refused,
  found[4] or '', found[5] or '', found[6] or '', found[3] and '1' or '',
}
