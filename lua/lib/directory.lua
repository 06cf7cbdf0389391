-- Shared by the store's scripts (included): the directory of partitions.

-- Takes an entry out.
local function take_out(partitions, deadlines, tokens, partition)
  redis.call('ZREM', partitions, partition)
  redis.call('HDEL', tokens, partition)
  return redis.call('ZREM', deadlines, partition) == 0 and 1 or 0
end

-- Stores the last token, and how many entries have no deadline. The keys expire with the last entry, if all have one; an empty directory goes.
local function close_directory(partitions, deadlines, tokens, last, lasting)
  if redis.call('ZCARD', partitions) == 0 then
    redis.call('UNLINK', partitions, deadlines, tokens)
    return
  end
  redis.call('HSET', tokens, '@last', string.format('%.0f', last), '@lasting', lasting)
  local latest = lasting == 0 and string.format('%.0f', redis.call('ZRANGE', deadlines, -1, -1, 'WITHSCORES')[2])
  for _, key in ipairs({ partitions, deadlines, tokens }) do
    if latest then redis.call('PEXPIREAT', key, latest) else redis.call('PERSIST', key) end
  end
end

-- Repairs the directory after a key of it was lost, by the names in the other keys. O(n) of its entries.
-- The keys have a TTL if each entry has a deadline. Then an entry without one gets the latest; else it lasts.
-- Returns what open_directory does.
local function repair_directory(partitions, deadlines, tokens)
  local ttl, names, time = -1, {}, redis.call('TIME')
  for _, key in ipairs({ partitions, deadlines, tokens }) do ttl = math.max(ttl, redis.call('PTTL', key)) end
  if ttl < 0 and redis.call('EXISTS', partitions, tokens) == 0 then
    return nil, redis.error_reply('DIRECTORY two parts of the directory ' .. partitions .. ' are gone')
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
  local last = math.max(time[1] * 1000000 + time[2], tonumber(string.match(redis.call('HGET', tokens, '@last') or '', '^%d+$') or 0))
  local latest = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ttl)
  for name in pairs(names) do
    redis.call('ZADD', partitions, 0, name)
    if redis.call('HEXISTS', tokens, name) == 0 then redis.call('HSET', tokens, name, string.format('%.0f', last)) end
    if ttl > 0 then redis.call('ZADD', deadlines, 'NX', latest, name) end
  end
  local lasting = redis.call('ZCARD', partitions) - redis.call('ZCARD', deadlines)
  close_directory(partitions, deadlines, tokens, last, lasting)
  return last, lasting
end

-- Repairs the directory if its three keys do not belong together. Returns (last, lasting): the last token that was given, 0 for none, and how many entries
-- have no deadline; or (nil, problem).
local function open_directory(partitions, deadlines, tokens)
  local last, lasting = unpack(redis.call('HMGET', tokens, '@last', '@lasting'))
  local count, temporary, fields = redis.call('ZCARD', partitions), redis.call('ZCARD', deadlines), redis.call('HLEN', tokens)
  if not last and count + temporary + fields == 0 then return 0, 0 end
  if not last or not string.find(last, '^%d+$') or not lasting or not string.find(lasting, '^%d+$') or fields ~= count + 2 or
    count ~= temporary + lasting then
    return repair_directory(partitions, deadlines, tokens)
  end
  return tonumber(last), tonumber(lasting)
end
