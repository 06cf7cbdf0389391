-- Shared by the store's scripts (included): the directory of partitions. The including script first defines its keys:
-- partitions, deadlines, tokens.

-- Removes an entry. Returns 1 if it had no deadline, else 0.
local function take_out(partition)
  redis.call('ZREM', partitions, partition)
  redis.call('HDEL', tokens, partition)
  return redis.call('ZREM', deadlines, partition) == 0 and 1 or 0
end

-- Stores the last token, and the number of entries without a deadline. The keys expire with the last entry if all have
-- deadlines. Deletes an empty directory.
local function close_directory(last, lasting)
  if redis.call('ZCARD', partitions) == 0 then
    redis.call('UNLINK', partitions, deadlines, tokens)
    return
  end
  redis.call('HSET', tokens, '@last', string.format('%.0f', last), '@lasting', lasting)
  local latest = lasting == 0 and tonumber(redis.call('ZRANGE', deadlines, -1, -1, 'WITHSCORES')[2])
  -- Another program may have written more than PEXPIREAT takes.
  local deadline = latest and math.abs(latest) < 1e15 and string.format('%.0f', latest)
  for _, key in ipairs({ partitions, deadlines, tokens }) do
    if deadline then redis.call('PEXPIREAT', key, deadline) else redis.call('PERSIST', key) end
  end
end

-- Repairs the directory from its other keys if one of them was lost. It takes O(n) time for n entries. If the keys have
-- a TTL, each entry had a deadline. Then an entry whose deadline was lost gets the latest one. Otherwise it gets none.
-- Returns the same as open_directory.
local function repair_directory()
  local ttl, names, time = -1, {}, redis.call('TIME')
  for _, key in ipairs({ partitions, deadlines, tokens }) do ttl = math.max(ttl, redis.call('PTTL', key)) end
  if ttl < 0 and redis.call('EXISTS', partitions, tokens) == 0 then
    return nil, redis.error_reply('DIRECTORY two parts of the directory are gone')
  end
  for _, key in ipairs({ partitions, deadlines }) do
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do names[name] = true end
  end
  local cursor, page = '0', nil
  repeat
    cursor, page = unpack(redis.call('HSCAN', tokens, cursor, 'COUNT', 1000))
    for i = 1, #page, 2 do names[page[i]] = true end
  until cursor == '0'
  names['@last'], names['@lasting'] = nil, nil
  local before = string.match(redis.call('HGET', tokens, '@last') or '', '^%d+$')
  local last = math.max(time[1] * 1000000 + time[2], tonumber(before or 0))
  local latest = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ttl)
  for name in pairs(names) do
    redis.call('ZADD', partitions, 0, name)
    if redis.call('HEXISTS', tokens, name) == 0 then redis.call('HSET', tokens, name, string.format('%.0f', last)) end
    if ttl > 0 then redis.call('ZADD', deadlines, 'NX', latest, name) end
  end
  local lasting = redis.call('ZCARD', partitions) - redis.call('ZCARD', deadlines)
  close_directory(last, lasting)
  return last, lasting
end

-- Opens the directory, and repairs it if its three keys are inconsistent. Returns (last, lasting), or (nil, problem).
-- `last` is the last token, or 0. `lasting` is the number of entries without a deadline.
local function open_directory()
  local last, lasting = unpack(redis.call('HMGET', tokens, '@last', '@lasting'))
  local count, temporary = redis.call('ZCARD', partitions), redis.call('ZCARD', deadlines)
  local fields = redis.call('HLEN', tokens)
  if not last and count + temporary + fields == 0 then return 0, 0 end
  local are_numbers = string.find(last or '', '^%d+$') and string.find(lasting or '', '^%d+$')
  if not are_numbers or fields ~= count + 2 or count ~= temporary + lasting then
    return repair_directory()
  end
  return tonumber(last), tonumber(lasting)
end
