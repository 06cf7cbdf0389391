-- Stores one checkpoint that cold has, and ends the doubt about it.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] doubts     sorted set  <prefix>:{<thread>}:doubts
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1..]          what put.lua takes, then what trust.lua does
--
-- Returns what put.lua does; where something is missing, the doubt stays.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames
--- @include lib_parts
--- @include lib_checkpoint
--- @include lib_put
--- @include lib_trust
--- @include lib_behind

local index, data, doubts, lease, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local last = #ARGV - 3

local missing = put_checkpoint(index, data, ARGV)
if missing.err or #missing > 0 then return missing end
trust(index, data, doubts, lease, dirty, ARGV[last + 1], ARGV[last + 2], ARGV[last + 3])
mark_again(index, data, lease, dirty, { ARGV[1] }, ARGV[8])
return missing
