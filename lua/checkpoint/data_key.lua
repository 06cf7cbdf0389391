-- Reads a data key, or replaces it by the same data key, wrapped anew.
--
-- KEYS[1] data       hash        <prefix>:{<thread>}:data, or that of a store's partition or of a cache
-- KEYS[2] index      sorted set  <prefix>:{<thread>}:index, for a thread only
-- ARGV[1] before     the stored data key to replace; '' to only read
-- ARGV[2] after      what replaces it
--
-- Returns what was stored; '' if it is plain; nil if there is no such hash. If `before` is something else, it replaces
-- nothing. If the hash cannot be read, returns a list with the text of the error instead of raising it, so that a batch
-- goes on with the others.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads, confirmed.

--- @include lib/thread

local data, index = unpack(KEYS)
local before, after = ARGV[1], ARGV[2]
local stored
if index then
  local meta, problem, found = open_thread(index, data, '@key')
  if problem then return { problem.err } end
  if not meta then return false end
  stored = found[4]
else
  local found = redis.pcall('HMGET', data, '@key', '@state')
  if found.err then return { found.err } end
  local format = string.match(found[2] or '', '^(%d%d?%d?%d?) ')
  if format and tonumber(format) > 2 then -- encrypted partitions have format 2
    return { 'UNSUPPORTED the partition is of format ' .. format .. ', and this redis_saver knows those up to 2' }
  end
  if redis.call('EXISTS', data) == 0 then return false end
  stored = found[1]
end
if stored and stored == before then redis.call('HSET', data, '@key', after) end
return stored or ''
