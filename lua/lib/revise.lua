-- Shared by the scripts (included): the state of a thread for scripts that change it.

-- A thread starts with format 1. The first pending write in chunks gives it format 2, the first tag format 3. An
-- encrypted thread has format 5: older releases left it at 4, and its next change gives it 5.
local HAS_CHUNKED_WRITES, HAS_TAG = 2, 3

-- Returns the state of a new thread. Its revision comes from the clock, so no earlier thread of this name had it.
-- fields: receives the fields of a new thread; key: the caller's data key, or ''.
local function new_thread(now, fields, key)
  local rev = string.format('%.0f', now[1] * 1000000 + now[2])
  fields[#fields + 1], fields[#fields + 2] = '@rewritten', rev
  if key ~= '' then fields[#fields + 1], fields[#fields + 2] = '@key', key end
  return { format = key == '' and 1 or IS_ENCRYPTED, rev = rev, bytes = 0, blobs = 0, writes = 0, tag = '', ttl = false }
end

-- Sets the tag of a thread. The tag contains the revision. So a put that is sent twice does not set the same tag again
-- if others removed something in between.
-- random: as put.lua takes it; '' for no tag.
local function set_tag(meta, random)
  meta.tag = random == '' and '' or string.format('%d', meta.rev) .. random
end

-- Returns true if a thread has this tag.
-- tag: a whole tag, or the random end of one that pending writes set. Only these set it, on the tag that they name. So a
-- tag with this end proves what that one proved, and their chunks.
local function is_tag(meta, tag)
  return meta.tag == tag or #tag == 16 and string.sub(meta.tag, -16) == tag
end

-- Returns the value for @state. No counter is below 0, even if another program changed it.
-- tag: the thread's new tag; '' if something that others rely on may have changed.
local function state_of(meta, tag)
  local bytes, blobs, writes, format = meta.bytes, meta.blobs, meta.writes, meta.format
  if tag ~= '' and format < HAS_TAG then format = HAS_TAG end
  if format == IS_ENCRYPTED then format = FORMAT end
  bytes, blobs, writes = math.max(bytes, 0), math.max(blobs, 0), math.max(writes, 0)
  local state = string.format('%d %d %d %d %d', format, meta.rev, bytes, blobs, writes)
  return tag == '' and state or state .. ' ' .. tag
end

-- Returns a new value of @rewritten. It is set when stored data are replaced or removed, and invalidates the histories
-- that processes have cached. It comes from the clock, so it differs from the value of an earlier thread of this name,
-- and from a value that a failover lost.
local function next_rewrite(data)
  local now, last = redis.call('TIME'), redis.call('HGET', data, '@rewritten')
  local above = last and #last <= 16 and string.find(last, '^%d+$') and last + 1 or 0
  return string.format('%.0f', math.max(now[1] * 1000000 + now[2], above))
end

-- Sets the next revision of a thread, as a number.
local function revise(meta)
  meta.rev = meta.rev + 1
end
