-- Stores one checkpoint, and notes that cold does not have it yet.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1..6]         as put.lua takes them, and so are all others but the last three: the token of the last fill that
--                    the caller knew of when it made the checkpoint's id, or ''; @complete, or @has_latest and the
--                    namespace, escaped, if that fill found nothing in cold, else ''; the parent's field, or ''
--
-- Returns what put.lua does, or
--   REFUSED  -1  cold has to be written first: nothing was done
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/put
--- @include lib/write_behind

local REFUSED = -1
local index, data, intents, lease, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local checkpoint, default, fill, gain, parent = ARGV[1], ARGV[6], ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]

local ns = string.sub(checkpoint, 2, (string.find(checkpoint, '%z')))
local field, value = standing(data, intents, lease, dirty, fill, gain, ns, parent, true, checkpoint)
if not field then return REFUSED end
local reply = put_checkpoint(index, data, ARGV, true, true)
if reply.err or reply[4] then return reply end
mark(index, data, lease, dirty, { checkpoint }, default, field, value)
return reply
