-- Ends an intent. If this server may lack the write, it drops the thread.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1] token      the writer's own
-- ARGV[2] newest     field to set: @complete, or @has_latest and an escaped namespace; or ''
-- ARGV[3] needed     field of the data without which the thread is dropped, or ''
-- ARGV[4] fill       token of the fill that `newest` is known from, or ''
--
-- Returns 0 if the thread was dropped, else 1. Then readers use it again, unless other intents are left.
-- Errors: none of ours.

--- @include lib/intents

local index, data, intents, lease, dirty = unpack(KEYS)
local token, newest, needed, fill = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
return end_intent(index, data, intents, lease, dirty, token, newest, needed, fill)
