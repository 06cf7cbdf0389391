-- Removes the rest of a damaged thread that cold has. The thread stays if it is dirty and can be opened, because then
-- another process has repaired it. A thread with an intent was written to cold first, so cold has it or has deleted it.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1] in_cold    '1' if cold is known to have the thread
--
-- Returns
--   ASK_COLD  0  the caller has to check whether cold has the thread
--   GIVEN_UP  1  nothing is left here
--   DIRTY     2  the thread is dirty and can be opened: another process repaired it, or the damage is elsewhere
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread

local ASK_COLD, GIVEN_UP, DIRTY = 0, 1, 2
local index, data, intents, dirty = unpack(KEYS)
local in_cold = ARGV[1]

local meta, problem = open_thread(index, data)
if redis.call('EXISTS', dirty) == 1 then return problem or DIRTY end
if not meta and not problem then return GIVEN_UP end
if problem and not string.find(problem.err, '^DAMAGED') then return problem end
if in_cold ~= '1' and redis.call('EXISTS', intents) == 0 and redis.call('HEXISTS', data, '@cold_backed') == 0 then
  if redis.call('EXISTS', data) == 0 then return ASK_COLD end
  return problem or redis.error_reply('DAMAGED what is left of the thread is not whole')
end
redis.call('UNLINK', index, data)
return GIVEN_UP
