-- Shared by the store's scripts (included): a partition's state, what has expired in it, its deadlines. docs/storage-format.md has the data.

local STORE_FORMAT = 1 -- the format of a partition, the first number of its @state
local CHECKSUM = 2 ^ 50 -- sums of versions are modulo this, so that doubles hold them exactly
local SWEPT = 1000 -- a script removes so many expired items at the most
local GRACE = 60000 -- the keys live so many milliseconds longer than the last item, so that not each refresh moves their deadline
local SKEW = 300000 -- the directory keeps a partition so many milliseconds longer than its last item, as another node's clock may be ahead
local RETIRED = 60000 -- so many milliseconds a token that was given back is refused

-- Reads the state of a partition, text. Returns (state, problem): state is nil where there is no such partition; problem is an error reply.
local function open_partition(items, order, expiring, namespaces, vectors, text)
  if not text then
    if redis.call('EXISTS', items, order, expiring, namespaces, vectors) > 0 then
      return nil, redis.error_reply('PARTITION the state of ' .. items .. ' is gone, while other parts of it are there')
    end
    return nil
  end
  local format, first, last, count, checksum, token, announced, ttls, deadline, spaces, deep, indexed =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  format = format or string.match(text, '^(%d+) ')
  if format and #format < 5 and tonumber(format) > STORE_FORMAT then
    return nil, redis.error_reply('UNSUPPORTED ' .. items .. ' is of format ' .. format .. ', and this redis_saver knows those up to ' .. STORE_FORMAT)
  end
  if not indexed or format ~= '1' or string.find(text, '%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d') then -- doubles hold 16 digits, if the first is a small one
    return nil, redis.error_reply('PARTITION the state of ' .. items .. ' cannot be read')
  end
  local state = {
    first = tonumber(first), last = tonumber(last), count = tonumber(count), checksum = tonumber(checksum), token = tonumber(token),
    announced = tonumber(announced), ttls = tonumber(ttls), deadline = tonumber(deadline), spaces = tonumber(spaces), deep = tonumber(deep),
    indexed = tonumber(indexed),
  }
  if redis.call('ZCARD', order) ~= state.count then
    return nil, redis.error_reply('PARTITION the key ' .. order .. ' is gone, or is not what ' .. items .. ' says')
  end
  if state.ttls > 0 and redis.call('ZCARD', expiring) ~= state.ttls then
    return nil, redis.error_reply('PARTITION the key ' .. expiring .. ' is gone, or is not what ' .. items .. ' says')
  end
  if state.spaces > 0 and redis.call('HLEN', namespaces) ~= state.spaces then
    return nil, redis.error_reply('PARTITION the key ' .. namespaces .. ' is gone, or is not what ' .. items .. ' says')
  end
  if state.indexed > 0 and redis.call('HLEN', vectors) ~= state.indexed then
    return nil, redis.error_reply('PARTITION the key ' .. vectors .. ' is gone, or is not what ' .. items .. ' says')
  end
  return state
end

-- The moment: microseconds, milliseconds.
local function clock()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2], now[1] * 1000 + math.floor(now[2] / 1000)
end

-- What stands in front of a record: when it was created, its version, its TTL ('0' for none), the put that made it. Nothing if that cannot be read.
local function head_of(record)
  local created, version, ttl, put = string.match(record, '^(%d+) (%d+) (%d+) (%x+) ')
  if put and #created <= 16 and #version <= 16 and #ttl <= 15 then return created, version, ttl, put end
end

-- Counts an item more, or less, in the namespace of a field. Items of the partition's own namespace are not counted.
local function count_namespace(namespaces, state, field, by)
  local labels = string.match(field, '^(.*%z)[^%z]*%z$')
  if not labels then return end
  local before = redis.call('HGET', namespaces, labels)
  local count = (tonumber(before or 0) or 0) + by -- what is no number counts as none: the numbers are compared elsewhere
  state.deep = state.deep + by
  if count >= 1 then
    redis.call('HSET', namespaces, labels, string.format('%.0f', count))
    if before then return end
    state.spaces = state.spaces + 1
    if state.spaces == 1 then state.deadline = -1 end -- the key is new, and has none yet
  elseif before then
    redis.call('HDEL', namespaces, labels)
    state.spaces = state.spaces - 1
  end
end

-- Takes items out, at most some thousands. They have to be there. The first write is one that a full server does not refuse.
local function remove_items(items, order, expiring, namespaces, vectors, state, fields)
  for i = 1, #fields do
    state.checksum = (state.checksum - (redis.call('ZSCORE', order, fields[i]) or 0)) % CHECKSUM
  end
  redis.call('HDEL', items, unpack(fields))
  state.count = state.count - redis.call('ZREM', order, unpack(fields))
  state.ttls = state.ttls - redis.call('ZREM', expiring, unpack(fields))
  if state.indexed > 0 then state.indexed = state.indexed - redis.call('HDEL', vectors, unpack(fields)) end
  if state.spaces > 0 then
    for i = 1, #fields do count_namespace(namespaces, state, fields[i], -1) end
  end
end

-- Stores the state behind other fields (a list of field, value, ...), and moves the deadline of the keys. A partition that has become empty goes, and
-- its token is refused for a while.
local function commit(items, order, expiring, namespaces, vectors, retired, state, changed)
  if state.count == 0 then
    redis.call('UNLINK', items, order, expiring, namespaces, vectors)
    redis.call('SET', retired, string.format('%.0f %.0f', state.token, state.last), 'PX', RETIRED)
    return
  end
  local deadline = 0
  if state.ttls == 0 then
    state.first = 0
  elseif state.ttls == state.count then
    local latest = tonumber(redis.call('ZRANGE', expiring, -1, -1, 'WITHSCORES')[2])
    deadline = state.deadline
    if latest > deadline or deadline > latest + 2 * GRACE then deadline = latest + GRACE end
  end
  local is_moved = deadline ~= state.deadline
  changed[#changed + 1] = '@state'
  changed[#changed + 1] = string.format('%d %.0f %.0f %d %.0f %.0f %.0f %d %.0f %d %d %d', STORE_FORMAT, state.first, state.last, state.count,
    state.checksum, state.token, state.announced, state.ttls, deadline, state.spaces, state.deep, state.indexed)
  redis.call('HSET', items, unpack(changed))
  if not is_moved then return end
  for _, key in ipairs({ items, order, expiring, namespaces, vectors }) do
    if deadline > 0 then
      redis.call('PEXPIREAT', key, string.format('%.0f', deadline))
    else
      redis.call('PERSIST', key)
    end
  end
end

-- Removes what has expired. Returns (more, gone): whether there may be more of it, and how many items went. state.count is 0 where all went.
local function sweep(items, order, expiring, namespaces, vectors, retired, state, now)
  if state.first == 0 or now < state.first then return false, 0 end
  local fields = redis.call('ZRANGEBYSCORE', expiring, '-inf', string.format('%.0f', now), 'LIMIT', 0, SWEPT)
  if #fields > 0 then
    remove_items(items, order, expiring, namespaces, vectors, state, fields)
  else
    redis.call('HDEL', items, '') -- removes nothing; behind it a full server takes the other writes, as reads are to go on there
  end
  local first = redis.call('ZRANGE', expiring, 0, 0, 'WITHSCORES')
  state.first = first[2] and tonumber(first[2]) or 0
  commit(items, order, expiring, namespaces, vectors, retired, state, {})
  return state.first > 0 and state.first <= now, #fields
end

-- Opens a partition for reading, without what has expired. Returns (state, answer): state is nil if the script is to return the answer, which is `nothing`
-- where the partition has no items, `again` if more has expired than one call removes, or an error reply.
local function open_swept(items, order, expiring, namespaces, vectors, retired, again, nothing)
  local state, problem = open_partition(items, order, expiring, namespaces, vectors, redis.call('HGET', items, '@state'))
  if not state then return nil, problem or nothing end
  local _, now = clock()
  if sweep(items, order, expiring, namespaces, vectors, retired, state, now) then return nil, again end
  if state.count == 0 then return nil, nothing end
  return state
end
