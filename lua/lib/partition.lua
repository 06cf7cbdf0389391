-- Shared by the store's scripts (included): a partition's state, its deadlines, its expired items.
-- docs/storage-format.md has the data. The including script first names the partition's keys, KEYS[1] to KEYS[6].

-- The newest format of a partition, the first number of its @state. Encrypted partitions have format 2, others 1.
local STORE_FORMAT = 2
-- Modulus of sums of versions, so that doubles hold them exactly.
local CHECKSUM = 2 ^ 50
-- Maximum number of expired items that a script removes.
local SWEPT = 1000
-- Milliseconds by which the keys outlive the last item. So their deadline need not move with each refresh.
local GRACE = 60000
-- Milliseconds for which the directory keeps a partition after its last item. Another node's clock may be ahead.
local SKEW = 300000
-- Milliseconds for which a token that was given back is refused.
local RETIRED = 60000

-- Returns a number without its fraction, as text.
local function text_of(number)
  return string.format('%.0f', number)
end

-- Reads the state of a partition from its text. Returns (state, problem). The state is nil if there is no such
-- partition. problem is an error reply, or nil.
local function open_partition(text)
  if not text then
    if redis.call('EXISTS', items, order, expiring, namespaces, vectors) == 0 then return nil end
    return nil, redis.error_reply('PARTITION the state is gone, while other parts of the partition are there')
  end
  local format, first, last, count, checksum, token, announced, ttls, deadline, spaces, deep, indexed =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  format = format or string.match(text, '^(%d+) ')
  if format and #format < 5 and tonumber(format) > STORE_FORMAT then
    local known = ', and this redis_saver knows those up to ' .. STORE_FORMAT
    return nil, redis.error_reply('UNSUPPORTED the partition is of format ' .. format .. known)
  end
  -- A double holds 16 digits exactly if the first digit is small.
  if not indexed or not string.find(format, '^[12]$') or string.find(text, string.rep('%d', 17)) then
    return nil, redis.error_reply('PARTITION the state cannot be read')
  end
  local state = {
    format = tonumber(format), first = tonumber(first), last = tonumber(last), count = tonumber(count),
    checksum = tonumber(checksum), token = tonumber(token), announced = tonumber(announced), ttls = tonumber(ttls),
    deadline = tonumber(deadline), spaces = tonumber(spaces), deep = tonumber(deep), indexed = tonumber(indexed),
  }
  local wrong = redis.call('ZCARD', order) ~= state.count and 'order'
    or state.ttls > 0 and redis.call('ZCARD', expiring) ~= state.ttls and 'expiring'
    or state.spaces > 0 and redis.call('HLEN', namespaces) ~= state.spaces and 'namespaces'
    or state.indexed > 0 and redis.call('HLEN', vectors) ~= state.indexed and 'vectors'
  if not wrong then return state end
  return nil, redis.error_reply('PARTITION the key ' .. wrong .. ' is gone, or is not what the state says')
end

-- Returns the time in microseconds, and in milliseconds.
local function clock()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2], now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Returns the head of a record: the time of its creation, its version, its TTL ('0' for none), the put that made it.
-- Returns nothing if the head cannot be read.
local function head_of(record)
  local created, version, ttl, put = string.match(record, '^(%d+) (%d+) (%d+) (%x+) ')
  if put and #created <= 16 and #version <= 16 and #ttl <= 15 then return created, version, ttl, put end
end

-- Stores an announcement in the state: the directory's token, and the deadline of its entry ('0' for none).
local function take_announcement(state, token, announced)
  if token == '' or tonumber(token) <= state.token then return end
  state.token = tonumber(token)
  if tonumber(announced) == 0 then
    state.announced = 0
  elseif state.announced > 0 then
    state.announced = math.max(state.announced, tonumber(announced))
  end
end

-- Adds 1 or -1 to the count of a field's namespace. Items of the partition's own namespace are not counted.
local function count_namespace(state, field, by)
  local labels = string.match(field, '^(.*%z)[^%z]*%z$')
  if not labels then return end
  local before = redis.call('HGET', namespaces, labels)
  local count = (tonumber(before or 0) or 0) + by -- damaged counts are 0: open_partition finds them
  state.deep = state.deep + by
  if count >= 1 then
    redis.call('HSET', namespaces, labels, text_of(count))
    if before then return end
    state.spaces = state.spaces + 1
    if state.spaces == 1 then state.deadline = -1 end -- the key is new, and has none yet
  elseif before then
    redis.call('HDEL', namespaces, labels)
    state.spaces = state.spaces - 1
  end
end

-- Removes up to a few thousand items, which must exist. The first write is one that a full server accepts.
local function remove_items(state, fields)
  for i = 1, #fields do
    state.checksum = (state.checksum - (redis.call('ZSCORE', order, fields[i]) or 0)) % CHECKSUM
  end
  redis.call('HDEL', items, unpack(fields))
  state.count = state.count - redis.call('ZREM', order, unpack(fields))
  state.ttls = state.ttls - redis.call('ZREM', expiring, unpack(fields))
  if state.indexed > 0 then state.indexed = state.indexed - redis.call('HDEL', vectors, unpack(fields)) end
  if state.spaces > 0 then
    for i = 1, #fields do count_namespace(state, fields[i], -1) end
  end
end

-- Stores the state after other fields (a list of field, value, ...), and moves the deadline of the keys. Deletes an
-- empty partition, and refuses its token for a while.
local function commit(state, changed)
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
  changed[#changed + 1], changed[#changed + 2] = '@state', string.format(
    '%d %.0f %.0f %d %.0f %.0f %.0f %d %.0f %d %d %d', state.format, state.first, state.last, state.count,
    state.checksum, state.token, state.announced, state.ttls, deadline, state.spaces, state.deep, state.indexed)
  redis.call('HSET', items, unpack(changed))
  if deadline == state.deadline then return end
  for _, key in ipairs({ items, order, expiring, namespaces, vectors }) do
    if deadline > 0 then redis.call('PEXPIREAT', key, text_of(deadline)) else redis.call('PERSIST', key) end
  end
end

-- Returns the error reply of a full server, or false. A full server accepts everything after a script's first write, so
-- a script that stores values asks this before. It changes nothing.
local function no_room()
  local reply = redis.pcall('ZADD', order, 'XX', 0, '')
  return type(reply) == 'table' and reply.err and reply
end

-- Removes expired items. Returns (more, gone, full): `more` is true if more may have expired, `gone` is the number of
-- removed items. If no item is left, state.count is 0. `full` is the result of no_room if the script `stores` values.
local function sweep(state, now, stores)
  if state.first == 0 or now < state.first then return false, 0 end
  local full = stores and no_room()
  local fields = redis.call('ZRANGEBYSCORE', expiring, '-inf', text_of(now), 'LIMIT', 0, SWEPT)
  if #fields > 0 then
    remove_items(state, fields)
  else
    redis.call('HDEL', items, '') -- removes nothing; after it a full server accepts the other writes of a read
  end
  state.first = tonumber(redis.call('ZRANGE', expiring, 0, 0, 'WITHSCORES')[2] or 0)
  commit(state, {})
  return state.first > 0 and state.first <= now, #fields, full
end

-- Removes expired items and opens the partition. `text` is its state, if the script has already read it. Returns
-- (state, reply, micros, now, gone). If the state is nil, the script must return the reply: `nothing` if the partition
-- has no items, `again` if more items have expired than one call removes, or an error reply. `micros` and `now` are the
-- time in microseconds and milliseconds. `gone` is the number of removed items. With `stores`, a full server's error is
-- the reply if it would accept the script's other writes, because items have expired.
local function open_swept(again, nothing, text, stores)
  local state, problem = open_partition(text or redis.call('HGET', items, '@state'))
  local micros, now = clock()
  if not state then return nil, problem or nothing, micros, now end
  local more, gone, full = sweep(state, now, stores)
  if full then return nil, full end
  if more then return nil, again end
  if state.count == 0 then return nil, nothing, micros, now end
  return state, nil, micros, now, gone
end

-- As open_swept, for scripts without a data key. An encrypted partition is an error.
local function open_plain(again, nothing)
  local state, reply, micros, now = open_swept(again, nothing)
  if state and state.format == STORE_FORMAT then
    return nil, redis.error_reply('OTHERKEY the partition is encrypted, and the caller has no encryption=')
  end
  return state, reply, micros, now
end
