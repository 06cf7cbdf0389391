-- Releases what the holder of a token was given of a thread: a flusher's claim, a writer's intent. For who will not use it.
--
-- KEYS[1] flush      hash        <prefix>:{<thread>}:flush
-- KEYS[2] intents    sorted set  <prefix>:{<thread>}:intents
-- ARGV[1] token      the holder's own
--
-- The claim is over now, for the next to take, who still learns that it was not acked. An intent is gone: nothing was written to cold by its writer.
-- Returns 1 where it held anything, else 0. A full server takes it, too.
-- Errors: none of ours.

local flush, intents = KEYS[1], KEYS[2]
local token = ARGV[1]

local held = 0
for _, intent in ipairs(redis.call('ZRANGEBYLEX', intents, '-', '+')) do
  if string.sub(intent, 33) == token then held = redis.call('ZREM', intents, intent) end
end
if redis.call('HGET', flush, 'token') == token then
  redis.call('HDEL', flush, '') -- a write: a full server refuses a script that would grow, unless it has begun to write
  redis.call('HSET', flush, 'until', '0')
  held = 1
end
return held
