-- Shared by the store's scripts (included): storing items in a partition. The script binds NOT_ANNOUNCED before.

--- @include lib/partition

-- Prepares a partition (state nil: a new one) for items of which one lives for `longest` milliseconds. Returns (state,
-- reply). If there is a reply, the script is to return it: an error, or NOT_ANNOUNCED with a token and a TTL. With
-- `needs_token` the announcement has to be a new one.
local function prepare(state, token, announced, longest, now, needs_token)
  local wanted = longest == math.huge and '0' or text_of(longest)
  if not state then
    local last_token, last_version = string.match(redis.call('GET', retired) or '0 0', '^(%d+) (%d+)$')
    if not last_token then return nil, redis.error_reply('PARTITION the key ' .. retired .. ' cannot be read') end
    if token == '' or tonumber(token) <= tonumber(last_token) then return nil, { NOT_ANNOUNCED, last_token, wanted } end
    state = { last = tonumber(last_version), announced = tonumber(announced) }
    for _, name in ipairs(NUMBERS) do state[name] = state[name] or 0 end
  end
  local is_refused = needs_token and (token == '' or tonumber(token) <= state.token)
  take_announcement(state, token, announced)
  if is_refused or state.announced > 0 and now + longest + SKEW > state.announced then
    return nil, { NOT_ANNOUNCED, text_of(state.token), wanted }
  end
  return state
end

-- Returns an empty batch of records.
local function new_batch()
  return { changed = {}, versions = {}, deadlines = {}, lasting = {}, plain = {}, embedded = {} }
end

-- Adds an item to a batch, in place of its record `old`. The item has a field, a version (a number), created, ttl,
-- deadline, put and value, and maybe vectors.
local function add(batch, state, item, old)
  local field, version, ttl, changed = item.field, text_of(item.version), item.ttl, batch.changed
  changed[#changed + 1] = field
  changed[#changed + 1] = table.concat({ item.created or version, version, ttl, item.put, item.value }, ' ')
  batch.versions[#batch.versions + 1], batch.versions[#batch.versions + 2] = version, field
  if (item.vectors or '') ~= '' then
    batch.embedded[#batch.embedded + 1], batch.embedded[#batch.embedded + 2] = field, item.vectors
  elseif old then
    batch.plain[#batch.plain + 1] = field
  end
  local _, old_version, old_ttl = head_of(old or '')
  state.last = math.max(state.last, item.version)
  state.checksum = (state.checksum - (old_version or 0) + item.version) % CHECKSUM
  if not old then
    state.count = state.count + 1
    count_namespace(state, field, 1)
  end
  if ttl ~= '0' then
    batch.deadlines[#batch.deadlines + 1], batch.deadlines[#batch.deadlines + 2] = text_of(item.deadline), field
    if state.first == 0 or item.deadline < state.first then state.first = item.deadline end
    if not old or old_ttl == '0' then
      state.ttls = state.ttls + 1
      if state.ttls == 1 then state.deadline = -1 end -- the key is new
    end
  elseif old and old_ttl ~= '0' then
    batch.lasting[#batch.lasting + 1] = field
    state.ttls = state.ttls - 1
  end
end

-- Stores a batch, except its records, which `commit` stores with the state.
local function store(state, batch)
  if batch.versions[1] then redis.call('ZADD', order, unpack(batch.versions)) end
  if batch.deadlines[1] then redis.call('ZADD', expiring, unpack(batch.deadlines)) end
  if batch.lasting[1] then redis.call('ZREM', expiring, unpack(batch.lasting)) end
  if batch.plain[1] and state.indexed > 0 then
    state.indexed = state.indexed - redis.call('HDEL', vectors, unpack(batch.plain))
  end
  if batch.embedded[1] then
    if state.indexed == 0 then state.deadline = -1 end -- the key is new
    state.indexed = state.indexed + redis.call('HSET', vectors, unpack(batch.embedded))
  end
end
