-- Shared by the scripts (included): ending a doubt.

-- It is given up where the doubt was spoiled, or is gone: then others may have believed what was here; but not what cold does not
-- have. The others who are writing it are to give it up, too: what they know of it is no more.
-- Takes what trust.lua does; returns 1 where the thread is believed again, if there are no other doubts, else 0.
local function trust(index, data, doubts, lease, dirty, token, newest, needed)
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
end
