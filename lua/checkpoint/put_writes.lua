-- Stores the pending writes of one task on one checkpoint, which need not exist yet.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] member     the task's member of the index: w, namespace, checkpoint id, task id
-- ARGV[2] regular    record of the regular writes, or ''; of each write: frames index, task path, channel, type, bytes. A
--                    write in chunks has the type \255chunks, and its root instead of the bytes
-- ARGV[3] count      how many regular writes that are
-- ARGV[4] default    the saver's TTL in milliseconds, or ''
-- ARGV[5] own        the thread's own TTL from now on in milliseconds, or ''
-- ARGV[6..]          pairs: a special write's index (negative), its record; then the field of a chunk, its bytes
--
-- A regular write that is there keeps its first value; a special one takes the newest.
-- Returns how many writes are new. If chunks are neither stored nor sent, it writes nothing and returns a list of their
-- fields, and the caller sends again with those.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/thread
--- @include lib/common_case

local index, data = KEYS[1], KEYS[2]
local meta, problem, found = open_thread(index, data, ARGV[1])
if problem then return problem end
if put_first_writes(index, data, ARGV, #ARGV, meta, found) then return tonumber(ARGV[3]) end

--- @include lib/framing
--- @include lib/chunks
--- @include lib/put_writes

return put_any_writes(index, data, ARGV, #ARGV, meta, found)
