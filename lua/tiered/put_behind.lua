-- Stores one checkpoint, and notes that cold does not have it yet.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1] checkpoint as put.lua takes it, and so are all others but the last three: a fill lease that the caller was given when there was
--                    nothing, or ''; @complete, or @has_latest and the namespace, escaped: what is true with that fill lease; the parent's
--                    field, or ''
-- ARGV[2] by_age     these
-- ARGV[3] run        are
-- ARGV[4] header     as
-- ARGV[5] named      put.lua
-- ARGV[6] names      takes
-- ARGV[7] flags      them
-- ARGV[8] default    the saver's TTL in milliseconds, or ''
--
-- Returns what put.lua does, or
--   REFUSED  -1  cold has to be written first: nothing was done
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/thread
--- @include lib/common_case
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint
--- @include lib/trim
--- @include lib/put
--- @include lib/write_behind

local REFUSED = -1
local index, data, intents, lease, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local checkpoint, default, fill_token, gain, parent = ARGV[1], ARGV[8], ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]

local ns = string.sub(checkpoint, 2, (string.find(checkpoint, '%z')))
local field = standing(data, intents, lease, dirty, fill_token, gain, ns, parent, true)
if not field then return REFUSED end
local missing = put_checkpoint(index, data, ARGV, true, dirty)
if missing.err or #missing > 0 then return missing end
mark(index, data, lease, dirty, { checkpoint }, default, field)
return missing
