-- Replaces a thread by a finished copy, and removes its old contents: the last step of copy_thread, and of the rotation
-- of a thread's data key.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] made_index sorted set  <prefix>:{<thread>}:index.<token>
-- KEYS[4] made_data  hash        <prefix>:{<thread>}:data.<token>
-- ARGV[1] token      the copy's name
-- ARGV[2] pages      number of its pages
-- ARGV[3] default    the saver's TTL in milliseconds, or ''
-- ARGV[4] bytes      size of the copy
-- ARGV[5] blobs      number of its values
-- ARGV[6] writes     number of its pending writes
-- ARGV[7] format     its format
-- ARGV[8] state      of a copy of the thread itself: the @state that was copied; its deadline stays. '' for a copy of
--                    another thread
-- ARGV[9..] marks    of a copy of the thread itself: fields that stay, such as @ttl and @cold_backed
--
-- Returns 1, even if the same call was already executed. Returns 0, and changes nothing, if a part of the copy is gone
-- (see stage.lua), or if the thread has another state.
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/ends_ownership
--- @include lib/thread
--- @include lib/revise

local index, data, made_index, made_data = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, pages, default = ARGV[1], ARGV[2], ARGV[3]
local bytes, blobs, writes, format = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local state = ARGV[8]
local _, problem, found = open_thread(index, data)
if problem then return problem end
if redis.call('EXISTS', made_index, made_data) < 2 then
  if redis.call('HGET', data, '@copy') ~= token then return 0 end
  end_ownership()
  return 1
end
if redis.call('HGET', made_data, '@copy_pages') ~= pages or not redis.call('ZSCORE', made_index, '') then return 0 end
if state ~= '' then
  if found[1] ~= state then return 0 end
  local left = redis.call('PTTL', data)
  default = left < 0 and '' or string.format('%d', left)
  for i = 9, #ARGV do
    local value = redis.call('HGET', data, ARGV[i])
    if value then redis.call('HSET', made_data, ARGV[i], value) end
  end
end
redis.call('UNLINK', index, data)
redis.call('RENAME', made_index, index)
redis.call('RENAME', made_data, data)
redis.call('HDEL', data, '@copy_pages')
local meta = new_thread(redis.call('TIME'), {}, '')
meta.format, meta.bytes, meta.blobs, meta.writes = format, bytes, blobs, writes
redis.call('HSET', data, '@copy', token, '@state', state_of(meta, ''), '@rewritten', meta.rev)
redis.call('PERSIST', index)
redis.call('PERSIST', data)
touch(index, data, nil, default, '')
end_ownership()
return 1
