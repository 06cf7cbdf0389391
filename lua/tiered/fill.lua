-- Stores a checkpoint of cold with its pending writes, if the fill lease still holds. It holds while only fills by this
-- lease change the thread. Or records that cold has no checkpoint in a namespace.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] lease      hash        <prefix>:{<thread>}:lease
-- ARGV[1] token      of the fill lease
-- ARGV[2] writes     prefix of the members of the checkpoint's pending writes
-- ARGV[3] newest     the namespace, escaped, if this is its newest checkpoint, else ''
-- ARGV[4] last       '1' if the fill lease ends with this fill; '0' if more fills follow
-- ARGV[5] n          number of records of pending writes
-- ARGV[6..]          for each record: its member of the index, the record, the number of its writes. Then the arguments
--                    of put.lua. Nothing if cold has no checkpoint in the namespace
--
-- Existing parts of the checkpoint stay. Its pending writes are replaced, because the reader read all of them under the
-- fill lease. Their task paths are unknown, so the order of the records is used instead.
-- Returns
--   ENDED   0  the fill lease has ended
--   FILLED  1  done
--   ABSENT  2  cold has nothing, and the thread is not here; the fill lease stays
-- Errors: DAMAGED, KEYCONFLICT, OTHERKEY, UNSUPPORTED.

--- @include lib/thread
--- @include lib/revise
--- @include lib/framing
--- @include lib/chunks
--- @include lib/put

local ENDED, FILLED, ABSENT = 0, 1, 2
local index, data, lease = unpack(KEYS)
local token, writes, newest, last, n = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call('HGET', lease, 'token') ~= token then return ENDED end
local meta, problem = open_thread(index, data)
if problem then return problem end
if #ARGV == 5 and not meta then return ABSENT end
if #ARGV == 5 then
  redis.call('UNLINK', lease) -- a full server accepts this write, and then the other one
  redis.call('HSET', data, '@has_latest' .. newest, token)
  return FILLED
end
local members = redis.call('ZRANGEBYLEX', index, '[' .. writes, '(' .. string.sub(writes, 1, -2) .. '\1')
local bytes, count, strays = 0, 0, ''
reading = 'a record of pending writes' -- read before any write, because a damaged record raises
for i = 1, #members do
  local record = redis.call('HGET', data, members[i]) or ''
  bytes, count = bytes + #record, count + math.floor(#unpack_frames(record) / 5)
  for _, root in ipairs(roots_in(record)) do strays = strays .. pack(root) end
end
local argv = {}
for i = 6 + 3 * n, #ARGV do argv[#argv + 1] = ARGV[i] end
local reply = put_checkpoint(index, data, argv, not meta) -- a full server refuses its first write
if reply.err then return reply end
if stored_nothing(reply) then return redis.error_reply('DAMAGED the checkpoint that was to fill the thread lacks values') end
if last == '1' then redis.call('UNLINK', lease) end
meta, problem = open_thread(index, data)
if problem then return problem end
meta.bytes, meta.writes = meta.bytes - bytes, meta.writes - count
for i = 1, #members do
  redis.call('ZREM', index, members[i])
  redis.call('HDEL', data, members[i])
end
for i = 1, n do
  local member, record = ARGV[3 + 3 * i], ARGV[4 + 3 * i]
  redis.call('HSET', data, member, record)
  redis.call('ZADD', index, 0, member)
  meta.bytes, meta.writes = meta.bytes + #record, meta.writes + tonumber(ARGV[5 + 3 * i])
end
if strays ~= '' then redis.call('HSET', data, '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. strays) end
if n > 0 then
  redis.call('HSET', data, '@no_task_path', (redis.call('HGET', data, '@no_task_path') or '') .. pack(writes))
end
if newest ~= '' then redis.call('HSET', data, '@has_latest' .. newest, token) end
redis.call('HSET', data, '@state', state_of(meta, ''))
return FILLED
