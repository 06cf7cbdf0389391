-- Changes when a thread expires.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] action     'set'    give it its own TTL
--                    'clear'  return to the default
--                    'pin'    keep it for ever
--                    'unpin'  the same as 'clear', if it is pinned
-- ARGV[2] ttl        milliseconds: its own TTL for 'set', else the saver's default, or ''
--
-- Returns the milliseconds left, -1 if the thread does not expire, nil if there is no such thread.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads, confirmed.

--- @include lib/thread

local index, data = KEYS[1], KEYS[2]
local action, ttl = ARGV[1], ARGV[2]
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return false end

if action == 'unpin' and meta.ttl == '0' then action = 'clear' end
if action == 'set' then
  touch(index, data, { dirty = meta.dirty }, '', ttl)
elseif action == 'clear' or action == 'pin' then
  redis.call('PERSIST', index)
  redis.call('PERSIST', data)
  if action == 'pin' then
    redis.call('HSET', data, '@ttl', '0')
  else
    redis.call('HDEL', data, '@ttl')
    if meta.dirty then redis.call('HSET', data, '@deferred_ttl', ttl) end -- it starts once cold has the thread
    touch(index, data, { dirty = meta.dirty }, ttl, '')
  end
end
return redis.call('PTTL', data)
