-- Shared by the scripts (included): acknowledging a write before cold has it.

-- Whether that is safe: nobody writes the thread to cold at this moment, cold has all else of it, and what is written is complete
-- without a look at cold.
-- fill_token: that the caller was given when there was nothing, or ''; gain: the field that tells what this thread then has.
-- ns: an escaped namespace; needed: a field of the data, or '': without it the write is not complete, unless the thread is whole.
-- is_newest: whether it must also be known that what is newest in the namespace is here.
-- Returns nil where it is not safe, else the field to set.
local function standing(data, intents, lease, dirty, fill_token, gain, ns, needed, is_newest)
  if redis.call('EXISTS', intents) == 1 then return nil end
  local found = redis.call('HMGET', data, '@state', '@cold_backed', '@deferred_ttl', '@complete', '@has_latest' .. ns, needed)
  local there, home, is_dirty, whole, newest, has_needed = unpack(found, 1, 6)
  if there and (not home or is_dirty and redis.call('EXISTS', dirty) == 0) then return nil end
  local granted = redis.call('HMGET', lease, 'token', 'barrier')
  if granted[2] then return nil end
  if whole then return '@cold_backed' end
  if not there and redis.call('ZSCORE', dirty, 'd') then return '@complete' end
  if fill_token ~= '' and granted[1] == fill_token then return gain end
  if there and (newest or not is_newest) and has_needed then return '@cold_backed' end
  return nil
end

-- Notes members of the index that cold does not have yet, in this order and behind all others: by microseconds of the clock.
local function note(dirty, members)
  local now, last = redis.call('TIME'), redis.call('ZRANGE', dirty, -1, -1, 'WITHSCORES')
  local stamp = math.max(now[1] * 1000000 + now[2], (tonumber(last[2]) or 0) + 1)
  for i = 1, #members do redis.call('ZADD', dirty, string.format('%.0f', stamp + i - 1), members[i]) end
end

-- Notes that cold has to delete the thread, and nothing else.
local function put_tombstone(dirty)
  note(dirty, { 'd' })
  redis.call('ZREMRANGEBYRANK', dirty, 0, -2)
end

-- Notes what was written here alone: until cold has it, the thread has no deadline.
-- ttl: the TTL that counts from then on, in milliseconds, or ''; field: what `standing` answered.
local function mark(index, data, lease, dirty, members, ttl, field)
  note(dirty, members)
  if ttl == '' then ttl = redis.call('HGET', data, '@deferred_ttl') or math.max(0, redis.call('PTTL', index)) end
  redis.call('HSET', data, '@cold_backed', '1', '@deferred_ttl', ttl == 0 and '' or ttl, field, '1')
  redis.call('PERSIST', index)
  redis.call('PERSIST', data)
  redis.call('UNLINK', lease)
end

-- Notes what was written through, where cold is to get the thread once more: a fenced flusher may have deleted it there. Takes what
-- `mark` does.
local function mark_again(index, data, lease, dirty, flush, members, ttl)
  if redis.call('EXISTS', dirty) == 1 or redis.call('HEXISTS', flush, 'fenced') == 1 then mark(index, data, lease, dirty, members, ttl, '@cold_backed') end
end
