-- Reads the data key of a thread, or replaces it by the same data key, wrapped anew.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] before     the stored data key to replace; '' to only read
-- ARGV[2] after      what replaces it
--
-- Returns what was stored; '' for a plain thread; nil if there is no such thread. If `before` is something else, it
-- replaces nothing. If the thread cannot be read, returns a list with the text of the error instead of raising it, so
-- that a batch goes on with the other threads.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads, confirmed.

--- @include lib/thread

local index, data = KEYS[1], KEYS[2]
local before, after = ARGV[1], ARGV[2]
local meta, problem, found = open_thread(index, data, '@key')
if problem then return { problem.err } end
if not meta then return false end
if found[4] and found[4] == before then redis.call('HSET', data, '@key', after) end
return found[4] or ''
