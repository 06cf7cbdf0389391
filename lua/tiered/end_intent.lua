-- Ends an intent: what the writer wrote elsewhere is here, too. Else the thread is given up here.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1] token      the writer's own
-- ARGV[2] newest     @complete, or @has_latest and an escaped namespace, where that is known to be here, or ''
-- ARGV[3] needed     a field of the data without which it is given up, or ''
-- ARGV[4] fill       the token of the fill by which `newest` is known, or ''
--
-- Returns 1 where the thread is believed again, if there are no other intents, else 0.
-- Errors: none of ours.

--- @include lib/intents

local index, data, intents, lease, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, newest, needed, fill = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
return end_intent(index, data, intents, lease, dirty, token, newest, needed, fill)
