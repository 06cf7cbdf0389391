-- Shared by the store's scripts (included): copies of a cold store's items, and the write intents that keep them
-- current. docs/storage-format.md has the data. The including script defines `notes` first, and `noted` if it writes.

--- @include lib/store_items

-- Milliseconds after which a writer counts as dead. A fill is refused after half of it.
local INTENT = 300000
-- TTL of the keys of the notes, in milliseconds. It is long, so that they are not evicted first.
local NOTES_KEPT = 86400000
-- Number of hex digits of cold's `updated_at` in a copy. An item of the store itself has 16 there, which name its put.
local UPDATED = 14
-- Maximum number of notes older than an intent that one call removes.
local FORGOTTEN = 100

-- Reads the note about an item. Returns (change, others, own). `change` is the number of the last begin or end of a
-- write, 0 for none. `others` has the other active writers, each as a space, a name, a space, a deadline. `own` is true
-- if this writer is active.
local function read_note(note, writer, now)
  local change, writers = string.match(note or '', '^(%d+)(.*)$')
  local others, own = '', false
  for name, deadline in string.gmatch(writers or '', ' (%x+) (%d+)') do
    if name == writer then
      own = true
    elseif tonumber(deadline) > now then
      others = others .. ' ' .. name .. ' ' .. deadline
    end
  end
  return tonumber(change or '0'), others, own
end

-- Notes a change of these items, with the active writers of each (as `read_note` returns them). Removes some old notes.
-- Returns the number of the change.
local function note_changes(fields, writers, micros, now)
  redis.call('HDEL', notes, '') -- removes nothing; after it a full server accepts the other writes
  local old = redis.call('ZRANGEBYSCORE', noted, '-inf', text_of(now), 'LIMIT', 0, FORGOTTEN)
  if old[1] then
    redis.call('HDEL', notes, unpack(old))
    redis.call('ZREM', noted, unpack(old))
  end
  local born, last = unpack(redis.call('HMGET', notes, '@born', '@last'))
  local change = math.max(micros, (tonumber(last or '') or 0) + 1)
  local about, ends = { '@born', born or text_of(change), '@last', text_of(change) }, {}
  for i, field in ipairs(fields) do
    about[#about + 1], about[#about + 2] = field, text_of(change) .. writers[i]
    ends[#ends + 1], ends[#ends + 2] = text_of(now + INTENT), field
  end
  redis.call('HSET', notes, unpack(about))
  redis.call('ZADD', noted, unpack(ends))
  redis.call('PEXPIRE', notes, NOTES_KEPT)
  redis.call('PEXPIRE', noted, NOTES_KEPT)
  return change
end

-- Returns the name of a miss, by which a fill can be refused: the start of the notes, the last change, the time.
local function name_miss(micros, now)
  local born, last = unpack(redis.call('HMGET', notes, '@born', '@last'))
  if not born or not last then
    born, last = text_of(micros), text_of(micros)
    redis.call('HDEL', notes, '') -- as above
    redis.call('HSET', notes, '@born', born, '@last', last)
    redis.call('PEXPIRE', notes, NOTES_KEPT)
  end
  return born .. ' ' .. last .. ' ' .. text_of(now)
end

-- Returns the last change before a miss. Returns nil if the notes were lost since then, or the miss is too old.
local function change_of_miss(miss, now)
  local born, last, at = string.match(miss, '^(%d+) (%d+) (%d+)$')
  if not born or redis.call('HGET', notes, '@born') ~= born or math.abs(now - at) > INTENT / 2 then return nil end
  return tonumber(last)
end

-- Removes the copies of items. Returns (state, problem). The state is nil if nothing is left. Then the partition's
-- token is kept for a while, because new copies are likely. An item that was put directly into this store is not a
-- copy: it stays, and problem is an error reply.
local function remove_copies(state, fields, now)
  local there, records = {}, redis.call('HMGET', items, unpack(fields))
  for i = 1, #fields do
    local _, _, _, updated = head_of(records[i] or '')
    if records[i] and (not updated or #updated ~= UPDATED) then
      local reason = 'an item is no copy of what a cold store has: it was put into this store itself'
      return nil, redis.error_reply('KEYCONFLICT ' .. reason)
    end
    if records[i] then there[#there + 1] = fields[i] end
  end
  if not there[1] then return state end
  remove_items(state, there)
  if state.count > 0 then
    commit(state, {})
    return state
  end
  redis.call('UNLINK', items, order, expiring, namespaces, vectors)
  local kept = string.format('%.0f %.0f %.0f %.0f', state.token, state.announced, state.last, now)
  redis.call('HSET', notes, '@kept', kept)
end

-- Stores copies (a list of {field, created, TTL, updated, value}) of items that have none. Returns what `prepare` does.
local function store_copies(state, copies, token, announced, micros, now)
  local longest = 0
  for _, copy in ipairs(copies) do
    longest = math.max(longest, copy[3] == '0' and math.huge or tonumber(copy[3]))
  end
  local kept = not state and redis.call('HGET', notes, '@kept') or ''
  local kept_token, kept_until, kept_last, kept_at = string.match(kept, '^(%d+) (%d+) (%d+) (%d+)$')
  local is_kept = kept_token and math.abs(now - kept_at) <= RETIRED / 2
  if is_kept and (token == '' or tonumber(token) < tonumber(kept_token)) then
    token, announced = kept_token, kept_until
  end
  local reply
  state, reply = prepare(state, '', token, announced, longest, now)
  if reply then return nil, reply end
  state.last = math.max(state.last, tonumber(kept_last or '0'))
  for _, copy in ipairs(copies) do
    local field, created, ttl, updated, value = unpack(copy)
    add(state, field, math.max(micros, state.last + 1), created, ttl, now + ttl, updated, value, '')
  end
  store(state)
  commit(state, changed)
  redis.call('HDEL', notes, '@kept')
  return state
end
