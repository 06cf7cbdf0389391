-- Shared by the scripts (included): opening a thread, its deadline, its counters.

-- The newest format of a thread, the first number of @state. Python reads it here. docs/storage-format.md says when to
-- raise it.
local FORMAT = 5
local IS_ENCRYPTED = 4 -- the format of an encrypted thread

-- Returns true for a valid TTL field: milliseconds, empty, or missing.
local function is_ttl(field)
  return not field or field == '' or #field <= 15 and string.find(field, '^%d+$')
end

-- Opens a thread, and checks it before anything is written.
-- ...: fields of the data to read with it.
-- Returns (meta, problem, found).
--   meta is nil if there is no such thread. Else it is a table of format, bytes, blobs, writes (numbers), rev, tag
--   (strings), ttl, dirty (strings or false).
--   problem is nil, or an error reply that the script has to return.
--   found has the values of the fields, from position 4.
local function open_thread(index, data, ...)
  local function fail(text) return nil, redis.error_reply(text) end
  local mark = redis.pcall('ZSCORE', index, '')
  if type(mark) == 'table' then
    return fail('KEYCONFLICT the key index is not a sorted set of redis_saver')
  end
  local fields = redis.pcall('HMGET', data, '@state', '@ttl', '@deferred_ttl', ...)
  if fields.err then return fail('KEYCONFLICT the key data is not a hash of redis_saver') end
  local state = fields[1]
  if not mark and not state then
    if redis.call('EXISTS', index, data) == 0 then return nil, nil, fields end
    return fail('KEYCONFLICT the keys were not written by redis_saver')
  end
  if not mark then return fail('DAMAGED the key index is gone while data is there') end
  if not state then return fail('DAMAGED the key data is gone while index is there') end
  local pattern = '^(%d%d?%d?%d?) (%d+) (%d+) (%d+) (%d+) ?(%x*)$'
  local format, rev, bytes, blobs, writes, tag = string.match(state, pattern)
  format = tonumber(format or string.match(state, '^(%d%d?%d?%d?) ') or '') or 0
  if format > FORMAT then
    local known = ', and this redis_saver knows those up to ' .. FORMAT
    return fail('UNSUPPORTED the thread is of format ' .. format .. known)
  end
  -- Lua counts exactly with up to 15 digits. The revision is a time in microseconds, with up to 16 digits.
  local is_sound = format > 0 and rev and #rev <= 16 and #bytes <= 15 and #blobs <= 15 and #writes <= 15
  if not is_sound or not is_ttl(fields[2]) or not is_ttl(fields[3]) then
    return fail('DAMAGED the counters of the thread cannot be read')
  end
  bytes, blobs, writes = tonumber(bytes), tonumber(blobs), tonumber(writes)
  local meta = { format = format, rev = rev, bytes = bytes, blobs = blobs, writes = writes, tag = tag }
  meta.ttl, meta.dirty = fields[2], fields[3]
  return meta, nil, fields
end

-- Returns an error unless the caller has the data key of the thread, or neither has one.
-- stored: the field @key, or false. key: the caller's data key: its id of 16 bytes, and the wrapped key if the thread may
-- be new; '' if the caller does not encrypt.
local function check_key(meta, stored, key)
  local has = meta and stored or ''
  if string.sub(has, 1, 16) == string.sub(key, 1, 16) or not meta and #key > 16 then return nil end
  return redis.error_reply('OTHERKEY the data key of the thread is not the one that the caller uses')
end

-- Sets the deadline of both keys: now + the thread's own TTL, or else the saver's default.
-- default_ttl, own_ttl: milliseconds as strings, '' for none. own_ttl becomes the thread's own TTL.
-- A pinned thread (own TTL '0') stays pinned. Without any TTL the deadline does not change. A thread has no deadline
-- while cold lacks a part of it.
local function touch(index, data, meta, default_ttl, own_ttl)
  local own = meta and meta.ttl
  if own == '0' then return end
  if own_ttl ~= '' and own ~= own_ttl then
    redis.call('HSET', data, '@ttl', own_ttl)
    own = own_ttl
  end
  local ttl = own or default_ttl
  if ttl == '' or meta and meta.dirty then return end
  local now = redis.call('TIME')
  local deadline = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + ttl)
  redis.call('PEXPIREAT', index, deadline)
  redis.call('PEXPIREAT', data, deadline)
end
