-- Shared by the scripts (included): write intents.

local WHOLE = string.rep('*', 16) -- the record of an intent on a whole thread
local INTENTS_KEPT = 30 * 24 * 3600 * 1000 -- milliseconds by which an intent outlives its thread

-- Returns the field to set at the end of an intent. Returns '' if another writer has stored something here since the
-- intent began, and this server has lost it.
-- The arguments are those of end_intent.
local function kept_since(data, intents, token, newest)
  if newest == '' or redis.call('EXISTS', data) == 1 then return newest end
  for _, intent in ipairs(redis.call('ZRANGEBYLEX', intents, '-', '+')) do
    if string.sub(intent, 33) == token and string.sub(intent, 16, 16) == '+' then return '' end
  end
  return newest
end

-- Ends an intent. Intents of other writers get a '+': from then on this server has the thread unless it loses it.
-- If the intent is conflicted or gone, other processes may have relied on stale data. So hot drops the thread, and
-- the intents of other writers become conflicted. A dirty thread is not dropped. Its intent stays, too, as if the
-- writer were gone, and the next reader first writes the thread to cold (fill_lease.lua).
-- newest: the field to set if hot has what it stands for, or ''.
-- fill: the value of that field.
-- The other arguments are those of end_intent.lua.
-- Returns 1 if hot's data is valid unless there are other intents, else 0.
local function end_intent(index, data, intents, lease, dirty, token, newest, needed, fill)
  local own
  local others = redis.call('ZRANGEBYLEX', intents, '-', '+')
  for i = #others, 1, -1 do
    if string.sub(others[i], 33) == token then own = table.remove(others, i) end
  end
  local sound = own and string.sub(own, 16, 16) ~= '!' and (needed == '' or redis.call('HEXISTS', data, needed) == 1)
  if not sound and redis.call('EXISTS', dirty) == 0 then
    redis.call('UNLINK', index, data)
    for _, other in ipairs(others) do
      local conflicted = string.sub(other, 1, 15) .. '!' .. string.sub(other, 17)
      if other ~= conflicted then
        redis.call('ZADD', intents, 0, conflicted)
        redis.call('ZREM', intents, other)
      end
    end
  elseif sound and redis.call('EXISTS', data) == 1 then
    redis.call('HSET', data, '@cold_backed', '1')
    if newest ~= '' then redis.call('HSET', data, newest, fill) end
    for _, other in ipairs(others) do
      if string.sub(other, 16, 16) == '-' then
        redis.call('ZREM', intents, other)
        redis.call('ZADD', intents, 0, string.sub(other, 1, 15) .. '+' .. string.sub(other, 17))
      end
    end
  end
  redis.call('UNLINK', lease)
  if own then redis.call('ZREM', intents, own) end
  if not sound and redis.call('EXISTS', dirty) == 1 then
    redis.call('ZADD', intents, 0, string.rep('0', 15) .. '!' .. WHOLE .. token)
    local found = redis.call('HMGET', data, '@state', '@deferred_ttl', '@ttl')
    local ttl, own_ttl = tonumber(found[2] or ''), tonumber(found[3] or '')
    if found[1] and (not ttl or own_ttl == 0) then
      redis.call('PERSIST', intents)
    else
      local longest = math.max(ttl or 0, own_ttl or 0, redis.call('PTTL', intents)) + INTENTS_KEPT
      redis.call('PEXPIRE', intents, string.format('%.0f', longest))
    end
  end
  return sound and 1 or 0
end
