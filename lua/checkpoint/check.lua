-- Tells what of a thread as a whole has to agree. What check begins and ends with; nothing is written.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[5] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] most       how many of the records are named that cold would not take
--
-- Returns {state, deadline, other, members, fields, lacking, kept, age, marks, refused}: @state as it is stored; milliseconds until the index
-- expires, and until the data does (-1: never); how many members the index has, and fields the data; how many records cold lacks; milliseconds until the note of
-- those expires (-2: there is none); milliseconds since the oldest writer that is between cold and here began (-1: there is none); @cold_backed, @complete,
-- @cold_gaps and @deferred_ttl, '' for each that is not there; a flat list of members and what is noted of cold not taking them. nil where there is no such thread.
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
    refused[#refused + 1] = member
    refused[#refused + 1] = noted
  end
end
local marks = { found[4] or '', found[5] or '', found[6] or '', found[3] and '1' or '' }
return {
  found[1], redis.call('PTTL', index), redis.call('PTTL', data), redis.call('ZCARD', index), redis.call('HLEN', data),
  redis.call('ZCARD', dirty), redis.call('PTTL', dirty), age, marks, refused,
}
