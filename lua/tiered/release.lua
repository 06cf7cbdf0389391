-- Releases what a token holds of a thread and will not use: a flusher's claim, a writer's intent.
--
-- KEYS[1] flush      hash        <prefix>:{<thread>}:flush
-- KEYS[2] intents    sorted set  <prefix>:{<thread>}:intents
-- ARGV[1] token      the holder's own
--
-- Another flusher may claim the thread at once, and still learns that this claim was not acked. The intent is gone: its
-- writer wrote nothing to cold.
-- Returns 1 if it held anything, else 0. A full server takes it, too.
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
