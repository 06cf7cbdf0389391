-- Shared by the store's scripts (included): storing items in a partition. The including script defines NOT_ANNOUNCED
-- first.

--- @include lib/partition

-- Collected by `add`: fields with their records, versions, deadlines and vectors. Then fields that no longer have a
-- deadline or vectors.
local changed, versions, deadlines, embedded, lasting, plain = {}, {}, {}, {}, {}, {}

-- True if the partition has another data key than the caller, or only one of them has one.
-- key: the caller's data key: its id of 16 bytes, and the wrapped key; '' if the caller does not encrypt.
local function has_other_key(state, key)
  if not state then return false end
  local stored = state.format == STORE_FORMAT and (redis.call('HGET', items, '@key') or ' ') or ''
  return string.sub(stored, 1, 16) ~= string.sub(key, 1, 16)
end

-- Prepares a partition (state nil: a new one, with this data key) for items; `longest` is the longest TTL in
-- milliseconds. Returns (state, reply). The script has to return the reply if there is one: an error, or NOT_ANNOUNCED
-- with a token and a TTL. With `needs_token` the announcement has to be a new one.
local function prepare(state, key, token, announced, longest, now, needs_token)
  local wanted = longest == math.huge and '0' or text_of(longest)
  if not state then
    local last_token, last_version = string.match(redis.call('GET', retired) or '0 0', '^(%d+) (%d+)$')
    if not last_token then return nil, redis.error_reply('PARTITION the key retired cannot be read') end
    if token == '' or tonumber(token) <= tonumber(last_token) then return nil, { NOT_ANNOUNCED, last_token, wanted } end
    state = {
      format = key == '' and 1 or STORE_FORMAT, first = 0, last = tonumber(last_version), count = 0, checksum = 0,
      token = 0, announced = tonumber(announced), ttls = 0, deadline = 0, spaces = 0, deep = 0, indexed = 0,
    }
    if key ~= '' then changed = { '@key', key } end
  end
  local is_refused = needs_token and (token == '' or tonumber(token) <= state.token)
  take_announcement(state, token, announced)
  if is_refused or state.announced > 0 and now + longest + SKEW > state.announced then
    return nil, { NOT_ANNOUNCED, text_of(state.token), wanted }
  end
  return state
end

-- Adds an item. The numbers are its version and deadline; old_version and old_ttl are nil if the item is new.
local function add(state, field, version, created, ttl, deadline, put, value, its_vectors, old_version, old_ttl)
  local new = string.format('%.0f', version)
  changed[#changed + 1] = field
  changed[#changed + 1] = (created or new) .. ' ' .. new .. ' ' .. ttl .. ' ' .. put .. ' ' .. value
  versions[#versions + 1] = new
  versions[#versions + 1] = field
  if its_vectors ~= '' then
    embedded[#embedded + 1] = field
    embedded[#embedded + 1] = its_vectors
  elseif old_version then
    plain[#plain + 1] = field
  end
  if version > state.last then state.last = version end
  state.checksum = (state.checksum - (old_version or 0) + version) % CHECKSUM
  if not old_version then
    state.count = state.count + 1
    count_namespace(state, field, 1)
  end
  if ttl ~= '0' then
    deadlines[#deadlines + 1] = string.format('%.0f', deadline)
    deadlines[#deadlines + 1] = field
    if state.first == 0 or deadline < state.first then state.first = deadline end
    if not old_version or old_ttl == '0' then
      state.ttls = state.ttls + 1
      if state.ttls == 1 then state.deadline = -1 end -- the key is new
    end
  elseif old_version and old_ttl ~= '0' then
    lasting[#lasting + 1] = field
    state.ttls = state.ttls - 1
  end
end

-- Stores the added items except their records. `commit` stores these with the state.
local function store(state)
  if versions[1] then redis.call('ZADD', order, unpack(versions)) end
  if deadlines[1] then redis.call('ZADD', expiring, unpack(deadlines)) end
  if lasting[1] then redis.call('ZREM', expiring, unpack(lasting)) end
  if plain[1] and state.indexed > 0 then state.indexed = state.indexed - redis.call('HDEL', vectors, unpack(plain)) end
  if embedded[1] then
    if state.indexed == 0 then state.deadline = -1 end -- the key is new
    state.indexed = state.indexed + redis.call('HSET', vectors, unpack(embedded))
  end
end
