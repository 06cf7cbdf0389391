-- Records a whole thread that only this server has. It is older than the tiers, or its records are gone.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
--
-- Returns the number of records, or 0 if cold has the thread, or if a writer has an intent.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/again

local index, data, intents, lease, dirty, flush = unpack(KEYS)

local meta, problem, found = open_thread(index, data, '@cold_backed')
if problem then -- if cold may have the thread, the next reader repairs it
  local is_hot_alone = redis.call('EXISTS', data) == 1 and redis.call('HEXISTS', data, '@cold_backed') == 0
  local is_lost = is_hot_alone and string.find(problem.err, '^DAMAGED')
  return is_lost and problem or 0
end
local is_only_here = meta and (not found[4] or meta.dirty and redis.call('EXISTS', dirty) == 0)
if not is_only_here or redis.call('EXISTS', intents) == 1 then return 0 end
redis.call('UNLINK', lease) -- a thread that began without the tiers may have the mark of a new one
note_all(index, data, dirty, flush, meta)
return redis.call('ZCARD', dirty)
