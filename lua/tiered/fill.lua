-- Brings back a checkpoint with its pending writes, if nothing happened to the thread since the fill lease was given
-- but for other fills by it.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] lease      hash        <prefix>:{<thread>}:lease
-- ARGV[1] token      of the fill lease
-- ARGV[2] writes     the beginning of the members of the checkpoint's pending writes
-- ARGV[3] newest     the namespace, escaped, where this is its newest checkpoint, else ''
-- ARGV[4] last       '1' where the fill lease ends with this; '0' where the reader has more to bring back
-- ARGV[5] n          how many records of pending writes follow
-- ARGV[6..]          of each: its member of the index, the record, how many writes it holds. Then what put.lua takes
--
-- Of the checkpoint and its values, what is here stays as it is. Its writes are replaced: who gives them read all there
-- are since the fill lease was given. Their paths are not known: their order is that of the records.
-- Returns 1, or 0 where the fill lease has ended.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/revise
--- @include lib/framing
--- @include lib/chunks
--- @include lib/put

local index, data, lease = KEYS[1], KEYS[2], KEYS[3]
local token, writes, newest, last, n = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call('HGET', lease, 'token') ~= token then return 0 end
if last == '1' then redis.call('UNLINK', lease) else redis.call('HDEL', lease, '') end -- a write, in any case: a full server refuses what would grow
local meta, problem = open_thread(index, data)
if problem then return problem end
local members, bytes, count, strays = redis.call('ZRANGEBYLEX', index, '[' .. writes, '(' .. string.sub(writes, 1, -2) .. '\1'), 0, 0, ''
reading = 'a record of pending writes' -- before anything is written, as one that cannot be read ends this
for i = 1, #members do
  local record = redis.call('HGET', data, members[i]) or ''
  bytes, count = bytes + #record, count + math.floor(#unpack_frames(record) / 5)
  for _, root in ipairs(roots_in(record)) do strays = strays .. pack(root) end
end
local argv = {}
for i = 6 + 3 * n, #ARGV do argv[#argv + 1] = ARGV[i] end
local reply = put_checkpoint(index, data, argv, not meta, true)
if reply.err then return reply end
if reply[4] then return redis.error_reply('DAMAGED the checkpoint that was to fill ' .. data .. ' lacks values') end
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
if n > 0 then redis.call('HSET', data, '@no_task_path', (redis.call('HGET', data, '@no_task_path') or '') .. pack(writes)) end
if newest ~= '' then redis.call('HSET', data, '@has_latest' .. newest, token) end
redis.call('HSET', data, '@state', state_of(meta, ''))
return 1
