-- Shared by the scripts (included, see redis_saver/scripts.py): opening a thread, its deadline, its counters.

-- Opens a thread and finds what is wrong with it before anything is written.
-- Returns (meta, problem): meta is nil where there is no such thread, else {rev = string, ttl = string or false};
-- problem is nil or an error reply to return at once.
local function open_thread(index, data)
  local mark = redis.pcall('ZSCORE', index, '')
  if type(mark) == 'table' and mark.err then
    return nil, redis.error_reply('FOREIGNKEY the key ' .. index .. ' is not a sorted set of redis_saver')
  end
  local meta = redis.pcall('HMGET', data, '@rev', '@ttl')
  if meta.err then
    return nil, redis.error_reply('FOREIGNKEY the key ' .. data .. ' is not a hash of redis_saver')
  end
  if not mark and not meta[1] then
    if redis.call('EXISTS', index, data) > 0 then
      return nil, redis.error_reply('FOREIGNKEY the keys ' .. index .. ' and ' .. data .. ' were not written by redis_saver')
    end
    return nil, nil
  end
  if not mark then
    return nil, redis.error_reply('DAMAGED the key ' .. index .. ' is gone while ' .. data .. ' is there')
  end
  if not meta[1] then
    return nil, redis.error_reply('DAMAGED the key ' .. data .. ' is gone while ' .. index .. ' is there')
  end
  return { rev = meta[1], ttl = meta[2] }, nil
end

-- Sets the deadline of both keys: now + the thread's own TTL, else the saver's default.
-- default_ttl, own_ttl: milliseconds as strings, '' for none; own_ttl, where given, becomes the thread's own TTL.
-- A pinned thread (own TTL '0') stays pinned; with no TTL at all the deadline stays what it is.
local function touch(index, data, meta, default_ttl, own_ttl)
  local own = meta and meta.ttl
  if own == '0' then return end
  if own_ttl ~= '' and own ~= own_ttl then
    redis.call('HSET', data, '@ttl', own_ttl)
    own = own_ttl
  end
  local ttl = own or default_ttl
  if ttl == '' then return end
  local now = redis.call('TIME')
  local deadline = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + ttl)
  redis.call('PEXPIREAT', index, deadline)
  redis.call('PEXPIREAT', data, deadline)
end

-- A revision for a thread that begins: another one than a thread of this name had before (by the clock).
local function first_revision(data)
  local now = redis.call('TIME')
  redis.call('HSET', data, '@rev', string.format('%.0f', now[1] * 1000000 + now[2]))
end

-- Adds n to one of the thread's counters (@rev, @bytes, @blobs, @writes).
local function count(data, counter, n)
  if n ~= 0 then redis.call('HINCRBY', data, counter, string.format('%.0f', n)) end
end
