-- Marks a thread as new: until its first write, hot knows that cold has nothing of it.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] nonce      the creator's own
-- ARGV[2] length     milliseconds for which the mark stays if nobody writes the thread
-- ARGV[3] kept       milliseconds for which the request is remembered
--
-- Every script that writes or deletes the thread removes the mark with the fill lease. A repeated request does not
-- bring it back, because cold may have the thread by then.
-- Returns 1, or 0 if there was a thread of this name: nothing was done.
-- Errors: none of ours.

local index, data, intents, lease, dirty, flush = unpack(KEYS)
local nonce, length, kept = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', flush, 'new') == nonce then return 1 end
if redis.call('EXISTS', index, data, intents, lease, dirty, flush) > 0 then return 0 end
redis.call('HSET', flush, 'new', nonce)
redis.call('PEXPIRE', flush, kept)
redis.call('HSET', lease, 'new', nonce)
redis.call('PEXPIRE', lease, length)
return 1
