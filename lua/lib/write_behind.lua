-- Shared by the scripts (included): write-behind, which acknowledges a write before cold has it.

--- @include lib/tiers

-- Checks that hot may acknowledge a write: no writer writes the thread to cold, cold has the rest of the thread, and
-- hot lacks nothing that belongs to the write.
-- fill: the token of a fill that the caller knows, or ''.
-- gain: the field to set if nothing happened since that fill lease was granted.
-- ns: an escaped namespace.
-- needed: a field of the data that the write depends on unless hot has the whole thread, or ''.
-- is_newest: true if hot must also have the newest checkpoint of the namespace.
-- checkpoint: the field of the checkpoint that is put, whose writes hot must have (has_its_writes). '' if it only puts
-- writes.
-- key: the caller's data key (check_key).
-- Returns the field to set and its value. Returns nil if the write has to go to cold first. Returns ('', '') if the
-- thread has another data key: the write itself then returns OTHERKEY.
local function standing(data, intents, lease, dirty, fill, gain, ns, needed, is_newest, checkpoint, key)
  if redis.call('EXISTS', intents) == 1 then return nil end
  local latest = '@has_latest' .. ns
  local fields = { '@state', '@cold_backed', '@deferred_ttl', '@complete', latest, needed, '@key' }
  local found = redis.call('HMGET', data, unpack(fields))
  local there, home, is_dirty, whole, newest, has_needed, own_key = unpack(found, 1, 7)
  if check_key(there, own_key, key) then return '', '' end
  if there and (not home or is_dirty and redis.call('EXISTS', dirty) == 0) then return nil end
  local granted = redis.call('HMGET', lease, 'token', 'barrier')
  if granted[2] then return nil end
  if not there and is_known_empty(dirty, lease) then return '@complete', '1' end
  if not whole and fill ~= '' and granted[1] == fill then return gain, fill end
  if not whole and not (there and (newest or not is_newest) and has_needed) then return nil end
  if checkpoint ~= '' and not has_its_writes(data, checkpoint, whole or newest, fill) then return nil end
  return '@cold_backed', '1'
end

-- Records members of the index that cold lacks, in this order and after all others. The score is in microseconds.
local function note(dirty, members)
  local now, last = redis.call('TIME'), redis.call('ZRANGE', dirty, -1, -1, 'WITHSCORES')
  local stamp = math.max(now[1] * 1000000 + now[2], (tonumber(last[2]) or 0) + 1)
  for i = 1, #members do redis.call('ZADD', dirty, string.format('%.0f', stamp + i - 1), members[i]) end
end

-- Replaces all records by one: cold has to delete the thread.
local function put_tombstone(dirty)
  note(dirty, { 'd' })
  redis.call('ZREMRANGEBYRANK', dirty, 0, -2)
end

-- Records what was written to hot alone. The thread has no deadline until cold has it.
-- ttl: the TTL from then on, in milliseconds, or ''.
-- field, value: results of `standing`.
local function mark(index, data, lease, dirty, members, ttl, field, value)
  note(dirty, members)
  if ttl == '' then ttl = redis.call('HGET', data, '@deferred_ttl') or math.max(0, redis.call('PTTL', index)) end
  redis.call('HSET', data, '@cold_backed', '1', '@deferred_ttl', ttl == 0 and '' or ttl, field, value)
  redis.call('PERSIST', index)
  redis.call('PERSIST', data)
  redis.call('UNLINK', lease)
end

-- Returns true if cold has to get the thread again, because a fenced flusher may have deleted it there.
local function is_due_again(dirty, flush)
  return redis.call('EXISTS', dirty) == 1 or redis.call('HEXISTS', flush, 'fenced') == 1
end

-- Records what was written through, if cold has to get the thread again. Arguments are those of `mark`.
local function mark_again(index, data, lease, dirty, flush, members, ttl)
  if is_due_again(dirty, flush) then mark(index, data, lease, dirty, members, ttl, '@cold_backed', '1') end
end
