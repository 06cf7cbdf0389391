-- Shared by the scripts (included, see redis_saver/_engine/scripts.py): opening a thread, its deadline, its counters.

-- The newest format of a thread, the first number of @state. Python reads it from here. docs/storage-format.md says
-- when it is raised.
local FORMAT = 3
-- A thread begins with format 1. It gets format 2 with the first pending write that is stored in chunks, and format 3
-- with its first tag.
local HAS_CHUNKED_WRITES, HAS_TAG = 2, 3

-- Whether that is the field of a TTL: milliseconds, nothing, or no such field.
local function is_ttl(field)
  return not field or field == '' or #field <= 15 and string.find(field, '^%d+$')
end

-- Opens a thread and finds what is wrong with it before anything is written.
-- ...: fields of the data to read with it.
-- Returns (meta, problem, found): meta is nil where there is no such thread, else {format, rev = string, bytes, blobs,
-- writes = numbers, tag = string, ttl = string or false, dirty = string or false}; problem is nil or an error reply to
-- return at once; found holds the fields' values from 4 on.
local function open_thread(index, data, ...)
  local mark = redis.pcall('ZSCORE', index, '')
  if type(mark) == 'table' and mark.err then
    return nil, redis.error_reply('KEYCONFLICT the key ' .. index .. ' is not a sorted set of redis_saver')
  end
  local fields = redis.pcall('HMGET', data, '@state', '@ttl', '@deferred_ttl', ...)
  if fields.err then
    return nil, redis.error_reply('KEYCONFLICT the key ' .. data .. ' is not a hash of redis_saver')
  end
  local state = fields[1]
  if not mark and not state then
    if redis.call('EXISTS', index, data) > 0 then
      return nil, redis.error_reply('KEYCONFLICT the keys ' .. index .. ' and ' .. data .. ' were not written by redis_saver')
    end
    return nil, nil, fields
  end
  if not mark then
    return nil, redis.error_reply('DAMAGED the key ' .. index .. ' is gone while ' .. data .. ' is there')
  end
  if not state then
    return nil, redis.error_reply('DAMAGED the key ' .. data .. ' is gone while ' .. index .. ' is there')
  end
  local _, _, format, rev, bytes, blobs, writes, tag = string.find(state, '^(%d%d?%d?%d?) (%d+) (%d+) (%d+) (%d+) ?(%x*)$')
  format = tonumber(format or string.match(state, '^(%d%d?%d?%d?) ') or '') or 0
  if format > FORMAT then
    return nil, redis.error_reply('UNSUPPORTED ' .. data .. ' is of format ' .. format .. ', and this redis_saver knows those up to ' .. FORMAT)
  end
  -- Numbers of 15 digits and less can be counted on with; the revision, microseconds of a clock, has one more.
  local is_sound = format > 0 and rev and #rev <= 16 and #bytes <= 15 and #blobs <= 15 and #writes <= 15
  if not is_sound or not is_ttl(fields[2]) or not is_ttl(fields[3]) then
    return nil, redis.error_reply('DAMAGED the counters of ' .. data .. ' cannot be read')
  end
  local meta = { format = format, rev = rev, bytes = tonumber(bytes), blobs = tonumber(blobs), writes = tonumber(writes), tag = tag, ttl = fields[2], dirty = fields[3] }
  return meta, nil, fields
end

-- The id of the newest checkpoint of a namespace, or nil.
local function newest_id(index, ns)
  local upper = '(c' .. string.sub(ns, 1, -2) .. '\1'
  local member = redis.call('ZREVRANGEBYLEX', index, upper, '[c' .. ns, 'LIMIT', 0, 1)[1]
  return member and string.sub(member, #ns + 2)
end

-- A thread that begins. Its revision is another one than a thread of this name had before (by the clock).
local function new_thread(now)
  return { format = 1, rev = string.format('%.0f', now[1] * 1000000 + now[2]), bytes = 0, blobs = 0, writes = 0, tag = '', ttl = false }
end

-- Sets the tag of a thread at its revision. The revision is in it, as a put may come twice: what others removed
-- meanwhile must not be relied on under the same tag.
-- random: what put.lua takes; '' if the thread is to have no tag.
local function set_tag(meta, random)
  meta.tag = random == '' and '' or string.format('%d', meta.rev) .. random
end

-- Returns the value for @state. No count is below 0: if somebody changed one, the thread is not lost for that.
-- tag: the thread's tag from now on; '' if something that others rely on may have changed.
local function state_of(meta, tag)
  local bytes, blobs, writes, format = meta.bytes, meta.blobs, meta.writes, meta.format
  if tag ~= '' and format < HAS_TAG then format = HAS_TAG end
  bytes, blobs, writes = math.max(bytes, 0), math.max(blobs, 0), math.max(writes, 0)
  local state = string.format('%d %d %d %d %d', format, meta.rev, bytes, blobs, writes)
  return tag == '' and state or state .. ' ' .. tag
end

-- What @rewritten is to hold where something that was stored becomes something else, or goes: what a process remembers
-- of a history is not believed any more. By the clock, so that it is another value than in a thread of this name, or in
-- a part of its past, that is gone.
local function next_rewrite(data)
  local now, last = redis.call('TIME'), redis.call('HGET', data, '@rewritten')
  local above = last and #last <= 16 and string.find(last, '^%d+$') and last + 1 or 0
  return string.format('%.0f', math.max(now[1] * 1000000 + now[2], above))
end

-- Moves a thread on to its next revision, which becomes a number.
local function revise(meta)
  meta.rev = meta.rev + 1
end

-- Sets the deadline of both keys: now + the thread's own TTL, else the saver's default.
-- default_ttl, own_ttl: milliseconds as strings, '' for none; own_ttl, where given, becomes the thread's own TTL.
-- A pinned thread (own TTL '0') stays pinned; with no TTL at all the deadline stays what it is. A thread that cold does
-- not have all of yet has none.
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
