-- Deletes a thread, a damaged one too, and notes that cold has to. What cold has of it is not believed until then.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
--
-- Returns 1; 0 where the thread is being written to cold: then nothing was done.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: confirmed, owned.
-- Ends ownership if: reply == 1.

--- @include lib/thread
--- @include lib/write_behind

local index, data, intents, lease, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

if redis.call('EXISTS', intents) == 1 then return 0 end
local _, problem = open_thread(index, data)
if problem and not string.find(problem.err, '^DAMAGED') then return problem end
redis.call('UNLINK', index, data, lease)
put_tombstone(dirty)
return 1
