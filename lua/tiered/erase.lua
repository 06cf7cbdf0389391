-- Deletes a thread that cold has deleted, even a damaged one, and ends its intent.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] token      the writer's own
-- ARGV[2] kept       milliseconds for which the deletion is remembered
--
-- If a fenced flusher added records meanwhile, cold deletes the thread once more. If the thread was ever flushed, the
-- deletion is remembered in case a flusher turns out to be fenced.
-- Returns 0, as end_intent.lua does if a thread is dropped.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/intents
--- @include lib/write_behind

local index, data, intents, lease, dirty, flush = unpack(KEYS)
local token, kept = ARGV[1], ARGV[2]

local _, problem = open_thread(index, data)
if problem and not string.find(problem.err, '^DAMAGED') then return problem end
local own
for _, intent in ipairs(redis.call('ZRANGEBYLEX', intents, '-', '+')) do
  if string.sub(intent, 33) == token then own = intent end
end
if not own and redis.call('EXISTS', dirty) == 1 then -- a repeated request, and the thread was recreated
  return end_intent(index, data, intents, lease, dirty, token, '', '?', '')
end
local first = redis.call('ZRANGEBYLEX', index, '[c', '(d', 'LIMIT', 0, 1)[1]
local base = first and '@flushed_head' .. string.sub(first, 2, (string.find(first, '%z')))
redis.call('HDEL', flush, 'new')
local was_flushed = redis.call('EXISTS', flush) == 1 or base and redis.call('HEXISTS', data, base) == 1
redis.call('UNLINK', index, data)
if redis.call('EXISTS', dirty) == 1 then put_tombstone(dirty) end
if was_flushed and own and string.sub(own, 16, 16) == '-' then -- no other writer meanwhile
  redis.call('HSET', flush, 'deleted', '1')
  redis.call('PEXPIRE', flush, kept)
end
return end_intent(index, data, intents, lease, dirty, token, '', '?', '')
