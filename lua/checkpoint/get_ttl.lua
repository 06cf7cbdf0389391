-- Reads when a thread expires.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
--
-- Returns the milliseconds left, -1 if the thread does not expire, nil if there is no such thread.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread

local index, data = KEYS[1], KEYS[2]
local meta, problem = open_thread(index, data)
if problem then return problem end
return meta and redis.call('PTTL', data) or false
