-- Stores a checkpoint, and records that cold lacks it.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1..14]        same as put.lua, and so are the others except the last four: '1' if a checkpoint that is put again
--                    keeps its parent in cold, else ''; the token of the last fill that the caller knew when it made
--                    the checkpoint's id, or ''; if that fill found nothing in cold, @complete or @has_latest and the
--                    escaped namespace, else ''; the parent's field, or ''
--
-- Returns the reply of put.lua. If the checkpoint has another parent, which it keeps, that one as its header has it:
-- nothing was done. Or
--   REFUSED  -1  the write has to go to cold first: nothing was done
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, OTHERKEY, STALEPARENT, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/put
--- @include lib/write_behind

local REFUSED = -1
local index, data, intents, lease, dirty = unpack(KEYS)
local checkpoint, default, fill, gain, parent = ARGV[1], ARGV[6], ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]

local ns = string.sub(checkpoint, 2, (string.find(checkpoint, '%z')))
local field, value = standing(data, intents, lease, dirty, fill, gain, ns, parent, true, checkpoint, ARGV[14])
if not field then return REFUSED end
local reply = put_checkpoint(index, data, ARGV, true, ARGV[#ARGV - 3] == '1')
if stored_nothing(reply) then return reply end
mark(index, data, lease, dirty, { checkpoint }, default, field, value)
return reply
