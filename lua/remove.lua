-- Removes some checkpoints with their writes, and the values that only they held. One step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] revision   the revision the plan was made at
-- ARGV[2] dry        '1' to count alone
-- ARGV[3] c          how many checkpoints follow
-- ARGV[4] b          how many values follow those
-- ARGV[5] w          how many records of writes follow those
-- ARGV[6..]          c members of checkpoints, b names of values, w members of writes, then members of runs
--
-- Returns {checkpoints, writes, values, bytes}: what was removed. nil where the thread was put to since the plan was
-- made (or is gone): nothing was removed.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames

local index, data = KEYS[1], KEYS[2]
local revision, dry = ARGV[1], ARGV[2] == '1'
local c, b, w = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.rev ~= revision then return false end

local checkpoints, writes, blobs, bytes = 0, 0, 0, 0

local function remove_writes(member)
  local record = redis.call('HGET', data, member)
  if not record then return end
  local pos = 1
  while pos <= #record do
    pos = skip(record, pos, 5)
    writes = writes + 1
  end
  bytes = bytes + #record
  if not dry then
    redis.call('HDEL', data, member)
    redis.call('ZREM', index, member)
  end
end

local at = 5
for i = at + 1, at + c do
  local name = string.sub(ARGV[i], 2)
  local first = string.find(name, '%z')
  local ns, id = string.sub(name, 1, first), string.sub(name, first + 1)
  local size = redis.call('HSTRLEN', data, ARGV[i])
  if size > 0 then
    checkpoints = checkpoints + 1
    bytes = bytes + size
    local members = redis.call('ZRANGEBYLEX', index, '[w' .. name, '(w' .. string.sub(name, 1, -2) .. '\1')
    for j = 1, #members do remove_writes(members[j]) end
    if not dry then
      redis.call('HDEL', data, ARGV[i])
      redis.call('ZREM', index, ARGV[i], 'i' .. id .. ns)
    end
  end
end
at = at + c
for i = at + 1, at + b do
  if redis.call('HEXISTS', data, ARGV[i]) == 1 then
    blobs = blobs + 1
    bytes = bytes + redis.call('HSTRLEN', data, ARGV[i])
    if not dry then redis.call('HDEL', data, ARGV[i]) end
  end
end
at = at + b
for i = at + 1, at + w do remove_writes(ARGV[i]) end
at = at + w
if not dry then
  for i = at + 1, #ARGV do redis.call('ZREM', index, ARGV[i]) end
  count(data, '@bytes', -bytes)
  count(data, '@blobs', -blobs)
  count(data, '@writes', -writes)
  local left = redis.call('ZLEXCOUNT', index, '[c', '(d') + redis.call('ZLEXCOUNT', index, '[w', '(x')
  if left == 0 then redis.call('UNLINK', index, data) end
end
return { checkpoints, writes, blobs, bytes }
