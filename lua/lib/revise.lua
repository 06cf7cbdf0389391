-- Shared by the scripts that change a thread (included): its revision, counters and tag.

-- A new thread has format 1. Its first pending write in chunks raises that to 2, and its first tag to 3.
local HAS_CHUNKED_WRITES, HAS_TAG = 2, 3

-- Returns a new thread. Its revision is the clock, so that earlier threads of this name had others.
local function new_thread(now)
  local rev = string.format('%.0f', now[1] * 1000000 + now[2])
  return { format = 1, rev = rev, bytes = 0, blobs = 0, writes = 0, tag = '', ttl = false }
end

-- Sets the tag of a thread. The revision is a part of it, because a put may arrive twice: the second tag must differ
-- if others removed something in between.
-- random: as in put.lua; '' for a thread without a tag.
local function set_tag(meta, random)
  meta.tag = random == '' and '' or string.format('%d', meta.rev) .. random
end

-- Returns the new value of @state. Counts are at least 0, so that a wrong one does not make the thread unreadable.
-- tag: the thread's new tag; '' if something that others rely on may have changed.
local function state_of(meta, tag)
  local bytes, blobs, writes, format = meta.bytes, meta.blobs, meta.writes, meta.format
  if tag ~= '' and format < HAS_TAG then format = HAS_TAG end
  bytes, blobs, writes = math.max(bytes, 0), math.max(blobs, 0), math.max(writes, 0)
  local state = string.format('%d %d %d %d %d', format, meta.rev, bytes, blobs, writes)
  return tag == '' and state or state .. ' ' .. tag
end

-- Returns the new value of @rewritten for a script that changes or removes something stored. It voids the histories
-- that processes remember. It is the clock, so that it differs from the values of earlier threads of this name, and
-- from those that a failover lost.
local function next_rewrite(data)
  local now, last = redis.call('TIME'), redis.call('HGET', data, '@rewritten')
  local above = last and #last <= 16 and string.find(last, '^%d+$') and last + 1 or 0
  return string.format('%.0f', math.max(now[1] * 1000000 + now[2], above))
end

-- Gives a thread its next revision, as a number.
local function revise(meta)
  meta.rev = meta.rev + 1
end
