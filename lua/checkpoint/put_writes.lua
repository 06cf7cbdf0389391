-- Stores the pending writes of one task on one checkpoint, which need not exist yet.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] member     the task's member of the index: w, namespace, checkpoint id, task id
-- ARGV[2] regular    record of the regular writes, or ''. Each write has the frames index, task path, channel, type,
--                    bytes. A write in chunks has the type \255chunks, and its root instead of the bytes
-- ARGV[3] count      number of regular writes
-- ARGV[4] default    the saver's TTL in milliseconds, or ''
-- ARGV[5] own        a new own TTL for the thread in milliseconds, or ''
-- ARGV[6] key        the data key, as put.lua takes it
-- ARGV[7] tags       '' if no write is in chunks, else the tag on which the caller relies (is_tag), or '', a space, and
--                    16 hex digits, with which the new tag ends
-- ARGV[8..]          pairs: a special write's index (negative), its record; then the field of a chunk, its bytes
--
-- A stored regular write keeps its first value. A special one takes the newest.
-- Returns the number of new writes, or for writes in chunks
--   {count, tag}     the number, and the tag that proves their chunks, or ''
--   {0, '', ...}     nothing was written, as chunks with these fields are neither stored nor sent
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, OTHERKEY, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/thread
--- @include lib/revise

local index, data = KEYS[1], KEYS[2]
local member, regular, count, default, own = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local meta, problem, found = open_thread(index, data, member, '@key')
problem = problem or check_key(meta, found[5], ARGV[6])
if problem then return problem end
if meta and not found[4] and regular ~= '' and #ARGV == 7 and ARGV[7] == '' then -- these are the task's first writes, all regular
  meta.bytes, meta.writes = meta.bytes + #regular, meta.writes + count
  redis.call('HSET', data, '@state', state_of(meta, meta.tag), member, regular)
  redis.call('ZADD', index, 0, member)
  touch(index, data, meta, default, own)
  return count
end

--- @include lib/put_writes

return put_any_writes(index, data, ARGV, #ARGV, meta, found)
