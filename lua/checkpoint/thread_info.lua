-- Describes a thread for threads().
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] root       the root namespace, escaped
-- ARGV[2] interrupt  how the member of a pending interrupt ends
--
-- Returns {id of the newest checkpoint or '', its links or '', checkpoints, bytes, milliseconds left (-1: no
-- deadline), 1 where the root's newest checkpoint has a pending interrupt, 1 where pinned}; nil where there is no thread.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local root, interrupt = ARGV[1], ARGV[2]

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return false end

local newest, head = newest_first(index, '(i\255', '[i', 1)[1], ''
if newest then
  local header
  header, problem = read_header(index, data, newest[2], newest[1])
  if problem then return problem end
  if not header then return gone(data, 'c' .. newest[2] .. newest[1]) end
  head = string.sub(header, 1, links(header).behind - 1)
end

local waits = 0
local id = newest_id(index, root)
if id then
  local from = 'w' .. root .. id
  local members = redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  for i = 1, #members do
    if string.sub(members[i], -#interrupt) == interrupt then waits = 1 end
  end
end
return {
  newest and newest[1] or '', head, redis.call('ZLEXCOUNT', index, '[c', '(d'),
  meta.bytes, redis.call('PTTL', data), waits, meta.ttl == '0' and 1 or 0,
}
