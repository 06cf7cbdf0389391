-- Stores one checkpoint that cold has, and ends the intent about it.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] checkpoint as put.lua takes it, and so are all others but the last three, which are what end_intent.lua takes
-- ARGV[2] by_age     these
-- ARGV[3] run        are
-- ARGV[4] header     as
-- ARGV[5] flags      put.lua takes them
-- ARGV[6] default    the saver's TTL in milliseconds, or ''
--
-- Where cold is to get the thread once more, it is to get this, too.
-- Returns what put.lua does; where something is missing, the intent stays.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/common_case
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint
--- @include lib/put
--- @include lib/intents
--- @include lib/write_behind

local index, data, intents, lease, dirty, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local checkpoint, default, last = ARGV[1], ARGV[6], #ARGV - 3

local reply = put_checkpoint(index, data, ARGV, false, true)
if reply.err or reply[3] then return reply end
mark_again(index, data, lease, dirty, flush, { checkpoint }, default)
end_intent(index, data, intents, lease, dirty, ARGV[last + 1], ARGV[last + 2], ARGV[last + 3])
return reply
