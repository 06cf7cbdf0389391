-- Checks if a thread has checkpoints of some runs. It is the first step of delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1..]          members of runs
--
-- Returns 1 if it has some, else 0. If the thread cannot be read, returns the text of the error instead of raising it,
-- so that a batch goes on with the other threads.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread

local index, data = KEYS[1], KEYS[2]
local meta, problem = open_thread(index, data)
if problem then return problem.err end
if not meta then return 0 end
for i = 1, #ARGV do
  if redis.call('ZSCORE', index, ARGV[i]) then return 1 end
end
return 0
