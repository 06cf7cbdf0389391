-- Ends a doubt: what the writer wrote elsewhere is here, too. Else the thread is given up here.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] doubts     sorted set  <prefix>:{<thread>}:doubts
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1] token      the writer's own
-- ARGV[2] newest     @whole, or @newest and an escaped namespace, where that is known to be here, or ''
-- ARGV[3] needed     a field of the data without which it is given up, or ''
--
-- It is given up where the doubt was spoiled, or is gone: then others may have believed what was here; but not what cold does not
-- have. The others who are writing it are to give it up, too: what they know of it is no more.
-- Returns 1 where the thread is believed again, if there are no other doubts, else 0.
-- Errors: none of ours.

local index, data, doubts, lease, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, newest, needed = ARGV[1], ARGV[2], ARGV[3]

local own
local others = redis.call('ZRANGEBYLEX', doubts, '-', '+')
for i = #others, 1, -1 do
  if string.sub(others[i], 33) == token then own = table.remove(others, i) end
end
local sound = own and string.sub(own, 16, 16) == '-' and (needed == '' or redis.call('HEXISTS', data, needed) == 1)
if not sound and redis.call('EXISTS', dirty) == 0 then
  redis.call('UNLINK', index, data)
  for _, other in ipairs(others) do
    local spoiled = string.sub(other, 1, 15) .. '!' .. string.sub(other, 17)
    if other ~= spoiled then
      redis.call('ZADD', doubts, 0, spoiled)
      redis.call('ZREM', doubts, other)
    end
  end
elseif sound and redis.call('EXISTS', data) == 1 then
  redis.call('HSET', data, '@home', '1')
  if newest ~= '' then redis.call('HSET', data, newest, '1') end
end
redis.call('UNLINK', lease)
if own then redis.call('ZREM', doubts, own) end
return sound and 1 or 0
