-- Notes that cold has no checkpoint in a namespace, if nothing happened to the thread since the fill lease was given.
-- So the first writes to the namespace find that nothing is missing here.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] lease      hash        <prefix>:{<thread>}:lease
-- ARGV[1] token      of the fill lease
-- ARGV[2] ns         the namespace, escaped
--
-- Returns
--   ENDED   0  the fill lease has ended
--   FILLED  1  it is noted, and the fill lease ends
--   ABSENT  2  the thread is not here; the fill lease stays
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread

local ENDED, FILLED, ABSENT = 0, 1, 2
local index, data, lease = KEYS[1], KEYS[2], KEYS[3]
local token, ns = ARGV[1], ARGV[2]

if redis.call('HGET', lease, 'token') ~= token then return ENDED end
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return ABSENT end
redis.call('UNLINK', lease) -- a write: a full server refuses a script that would grow, unless it has begun to write
redis.call('HSET', data, '@has_latest' .. ns, token)
return FILLED
