-- Shared by the store's scripts (included): the directory of partitions.

-- Looks whether the three keys belong together. Returns (last, problem): the last token that was given, 0 for none.
local function open_directory(partitions, deadlines, tokens)
  local last, lasting = unpack(redis.call('HMGET', tokens, '@last', '@lasting'))
  local count, temporary, fields = redis.call('ZCARD', partitions), redis.call('ZCARD', deadlines), redis.call('HLEN', tokens)
  if not last and count + temporary + fields == 0 then return 0, 0 end
  if not last or not string.find(last, '^%d+$') or not lasting or not string.find(lasting, '^%d+$') or fields ~= count + 2 or
    count ~= temporary + lasting then
    return nil, redis.error_reply('DIRECTORY a part of the directory ' .. partitions .. ' is gone')
  end
  return tonumber(last), tonumber(lasting)
end

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
