-- Deletes a thread, even a damaged one, and records a tombstone. Until cold has deleted the thread, too, its data in
-- cold do not count.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
--
-- Returns 1, or 0 if a writer has an intent: then nothing was done.
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/ends_ownership
--- @include lib/thread
--- @include lib/write_behind

local index, data, intents, lease, dirty = unpack(KEYS)

if redis.call('EXISTS', intents) == 1 then return 0 end
local _, problem = open_thread(index, data)
if problem and not string.find(problem.err, '^DAMAGED') then return problem end
redis.call('UNLINK', index, data, lease)
put_tombstone(dirty)
end_ownership()
return 1
