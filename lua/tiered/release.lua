-- Releases the claim or the intent that a token holds on a thread.
--
-- KEYS[1] flush      hash        <prefix>:{<thread>}:flush
-- KEYS[2] intents    sorted set  <prefix>:{<thread>}:intents
-- ARGV[1] token      the holder's own
--
-- Another flusher may claim the thread at once, and learns that this claim was not acked. An intent is removed: its
-- writer wrote nothing to cold.
-- Returns 1 if the token held anything, else 0. Works on a full server.
-- Errors: none of ours.

local flush, intents = unpack(KEYS)
local token = ARGV[1]

local held = 0
for _, intent in ipairs(redis.call('ZRANGEBYLEX', intents, '-', '+')) do
  if string.sub(intent, 33) == token then held = redis.call('ZREM', intents, intent) end
end
if redis.call('HGET', flush, 'token') == token then
  redis.call('HDEL', flush, '') -- a full server accepts this write, and then the others
  redis.call('HSET', flush, 'until', '0')
  held = 1
end
return held
