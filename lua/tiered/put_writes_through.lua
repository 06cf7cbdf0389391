-- Stores the pending writes of a task that cold has, and ends their intent.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1..4]         same as put_writes.lua, and so are the others except the last four: the arguments of
--                    end_intent.lua
--
-- If the thread will be flushed once more, the writes are recorded as dirty, too.
-- Returns the reply of put_writes.lua.
-- Errors: DAMAGED, KEYCONFLICT, OTHERKEY, UNSUPPORTED.

--- @include lib/put_writes
--- @include lib/intents
--- @include lib/write_behind

local index, data, intents, lease, dirty, flush = unpack(KEYS)
local default, last = ARGV[4], #ARGV - 4
local newest = kept_since(data, intents, ARGV[last + 1], ARGV[last + 2])

local added = put_task(index, data, ARGV, last)
if type(added) == 'table' and (added.err or added[3]) then return added end
mark_again(index, data, lease, dirty, flush, members_of(ARGV, last), default)
end_intent(index, data, intents, lease, dirty, ARGV[last + 1], newest, ARGV[last + 3], ARGV[last + 4])
return added
