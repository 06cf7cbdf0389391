-- Shared by the scripts (included): acknowledging a write before cold has it.

--- @include lib/tiers

-- Checks that this server may acknowledge a write: no writer has an intent, cold has or will get the rest of the
-- thread, and this server lacks nothing that the write needs.
-- fill: the token of a fill that the caller knows, or ''. gain: the field that the write sets if nothing happened since
-- that fill lease. ns: an escaped namespace.
-- needed: a field of the data without which the write is not complete, unless the thread is complete; or ''.
-- is_newest: true if the newest checkpoint of the namespace must be here, too.
-- checkpoint: the field of the checkpoint that is put, '' for writes. Cold must have no writes of it that this server
-- lacks (lib/tiers).
-- Returns the field to set and its value, or nil if the write has to go to cold first.
local function standing(data, intents, lease, dirty, fill, gain, ns, needed, is_newest, checkpoint)
  if redis.call('EXISTS', intents) == 1 then return nil end
  local latest = '@has_latest' .. ns
  local found = redis.call('HMGET', data, '@state', '@cold_backed', '@deferred_ttl', '@complete', latest, needed)
  local there, home, is_dirty, whole, newest, has_needed = unpack(found, 1, 6)
  if there and (not home or is_dirty and redis.call('EXISTS', dirty) == 0) then return nil end
  local granted = redis.call('HMGET', lease, 'token', 'barrier')
  if granted[2] then return nil end
  if not there and redis.call('ZSCORE', dirty, 'd') then return '@complete', '1' end
  if not whole and fill ~= '' and granted[1] == fill then return gain, fill end
  if not whole and not (there and (newest or not is_newest) and has_needed) then return nil end
  if checkpoint ~= '' and not has_its_writes(data, checkpoint, whole or newest, fill) then return nil end
  return '@cold_backed', '1'
end

-- Notes members of the index for cold, in this order and after all others. The score is a time in microseconds.
local function note(dirty, members)
  local now, last = redis.call('TIME'), redis.call('ZRANGE', dirty, -1, -1, 'WITHSCORES')
  local stamp = math.max(now[1] * 1000000 + now[2], (tonumber(last[2]) or 0) + 1)
  for i = 1, #members do redis.call('ZADD', dirty, string.format('%.0f', stamp + i - 1), members[i]) end
end

-- Notes that cold has to delete the thread, in place of all other records.
local function put_tombstone(dirty)
  note(dirty, { 'd' })
  redis.call('ZREMRANGEBYRANK', dirty, 0, -2)
end

-- Notes records that only this server has. Until cold has them, the thread has no deadline.
-- ttl: the TTL that counts from then on in milliseconds, or ''. field, value: the reply of `standing`.
local function mark(index, data, lease, dirty, members, ttl, field, value)
  note(dirty, members)
  if ttl == '' then ttl = redis.call('HGET', data, '@deferred_ttl') or math.max(0, redis.call('PTTL', index)) end
  redis.call('HSET', data, '@cold_backed', '1', '@deferred_ttl', ttl == 0 and '' or ttl, field, value)
  redis.call('PERSIST', index)
  redis.call('PERSIST', data)
  redis.call('UNLINK', lease)
end

-- True if cold will get the thread once more, because a fenced flusher may have deleted it there.
local function is_due_again(dirty, flush)
  return redis.call('EXISTS', dirty) == 1 or redis.call('HEXISTS', flush, 'fenced') == 1
end

-- Notes records that were written through, if cold will get the thread once more. Arguments as for `mark`.
local function mark_again(index, data, lease, dirty, flush, members, ttl)
  if is_due_again(dirty, flush) then mark(index, data, lease, dirty, members, ttl, '@cold_backed', '1') end
end
