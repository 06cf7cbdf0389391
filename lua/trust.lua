-- Ends a doubt: what the writer wrote elsewhere is here, too. Else the thread is given up here.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] doubts     sorted set  <prefix>:{<thread>}:doubts
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- ARGV[1] token      the writer's own
-- ARGV[2] newest     @newest and an escaped namespace, where that is known to be here, or ''
-- ARGV[3] needed     a field of the data without which it is given up, or ''
--
-- It is given up where the doubt was spoiled, or is gone: then others may have believed what was here.
-- Returns 1 where the thread is believed again, if there are no other doubts, else 0.
-- Errors: none of ours.

local index, data, doubts, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, newest, needed = ARGV[1], ARGV[2], ARGV[3]

local own
for _, doubt in ipairs(redis.call('ZRANGEBYLEX', doubts, '-', '+')) do
  if string.sub(doubt, 33) == token then own = doubt end
end
local sound = own and string.sub(own, 16, 16) == '-' and (needed == '' or redis.call('HEXISTS', data, needed) == 1)
if not sound then
  redis.call('UNLINK', index, data)
elseif redis.call('EXISTS', data) == 1 then
  redis.call('HSET', data, '@home', '1')
  if newest ~= '' then redis.call('HSET', data, newest, '1') end
end
redis.call('UNLINK', lease)
if own then redis.call('ZREM', doubts, own) end
return sound and 1 or 0
