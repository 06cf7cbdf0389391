-- Shared by the scripts (included): what a script that changes a thread stores about it.

-- A thread begins with format 1. It gets format 2 with the first pending write that is stored in chunks, and format 3
-- with its first tag.
local HAS_CHUNKED_WRITES, HAS_TAG = 2, 3

-- A thread that begins. Its revision is another one than a thread of this name had before (by the clock).
local function new_thread(now)
  local rev = string.format('%.0f', now[1] * 1000000 + now[2])
  return { format = 1, rev = rev, bytes = 0, blobs = 0, writes = 0, tag = '', ttl = false }
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
