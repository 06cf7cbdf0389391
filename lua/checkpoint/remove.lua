-- Removes fields of a thread, and their members of the index. One step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] dirty      sorted set  <prefix>:{<thread>}:dirty, if a cold saver keeps what is removed here; else nothing
-- ARGV[1] revision   the revision the plan was made at, or the one the last step answered
-- ARGV[2] dry        '1' to count alone
-- ARGV[3] known      '1' if what processes remember of the histories of the other checkpoints stays true
-- ARGV[4..]          names as in docs/storage-format.md: c, a header, with up to 500 of the checkpoint's records of
--                    writes; w, a record of writes; b, a value; n, p, z, a chunk; r, a run's member; @, a field about
--                    the thread. The roots of values and lists of chunks are noted in @gc_roots, unless that goes too.
--                    ^ and the name of a header: its parent alone, as that goes; the checkpoint stays
--
-- Returns {checkpoints, writes, values, bytes, revision}: what was removed, and the new revision. nil if nothing was
-- removed, because a checkpoint was put or something else was removed since the plan was made, because the thread is
-- gone, or because cold lacks one of the names.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks

local index, data, dirty = KEYS[1], KEYS[2], KEYS[3]
local revision, dry, is_known = ARGV[1], ARGV[2] == '1', ARGV[3] == '1'

-- Notes that hot has no longer all of the thread, but the newest checkpoint of each namespace.
-- Returns true if it had all until now.
local function becomes_partial()
  if redis.call('HDEL', data, '@complete') == 0 then return false end
  local lower = '[c'
  while true do
    local newest = redis.call('ZRANGEBYLEX', index, lower, '(d', 'LIMIT', 0, 1)[1]
    if not newest then return true end
    local ns = string.sub(newest, 2, (string.find(newest, '%z')))
    redis.call('HSET', data, '@has_latest' .. ns, '1')
    lower = '(c' .. string.sub(ns, 1, -2) .. '\1'
  end
end

-- Drops the notes about checkpoints that are gone, whose writes came back from cold without their task paths.
local function forget_pathless()
  local noted, left = redis.call('HGET', data, '@no_task_path'), {}
  if not noted then return end
  for _, writes in ipairs(unpack_frames(noted)) do
    if redis.call('ZSCORE', index, 'c' .. string.sub(writes, 2)) then left[#left + 1] = pack(writes) end
  end
  redis.call('HSET', data, '@no_task_path', table.concat(left))
end

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.rev ~= revision then return false end

local listed, doomed = {}, {}
local function doom(name)
  if not listed[name] then
    listed[name] = true
    doomed[#doomed + 1] = name
  end
end
local orphans = {} -- the names of headers that lose their parent
for i = 4, #ARGV do
  local kind = string.sub(ARGV[i], 1, 1)
  if kind == '^' then
    orphans[#orphans + 1] = string.sub(ARGV[i], 2)
  else
    doom(ARGV[i])
  end
  if kind == 'c' then
    local from = 'w' .. string.sub(ARGV[i], 2)
    local upper = '(' .. string.sub(from, 1, -2) .. '\1'
    local members = redis.call('ZRANGEBYLEX', index, '[' .. from, upper, 'LIMIT', 0, 500)
    for j = 1, #members do doom(members[j]) end
  end
end

for i = 1, dirty and #doomed or 0 do
  if redis.call('ZSCORE', dirty, doomed[i]) then return false end
end

-- First everything is read, as a record that cannot be read must stop it before anything is removed.
local removed, bytes, strays = { c = 0, w = 0, b = 0, n = 0, p = 0, z = 0 }, 0, {}
for i = 1, #doomed do
  local name = doomed[i]
  local kind = string.sub(name, 1, 1)
  local size = redis.call('HSTRLEN', data, name)
  if size > 0 and kind == 'w' then
    local record, pos = redis.call('HGET', data, name), 1
    while pos <= size do
      pos = skip(record, pos, 5)
      removed.w = removed.w + 1
    end
  elseif removed[kind] and (size > 0 or redis.call('HEXISTS', data, name) == 1) then
    removed[kind] = removed[kind] + 1
  end
  if kind ~= '@' then bytes = bytes + size end
  -- What was only named by what goes now is noted, until a later step removes it.
  if listed['@gc_roots'] then -- all that is noted goes in this step, with what is below
  elseif kind == 'n' and size > 0 then
    local list = redis.call('HGET', data, name)
    strays[#strays + 1] = as_stray(string.sub(list, 1, 1), string.sub(list, 2))
  elseif kind == 'b' and size > 0 and size <= MAX_ROOT then
    local root = redis.call('HGET', data, name)
    if in_chunks(root) then strays[#strays + 1] = pack(root) end
  end
end
local without_parent = {} -- by the header's name
for i = 1, #orphans do
  local header = redis.call('HGET', data, orphans[i])
  if header then
    local rest = string.sub(header, skip(header, 1, 1))
    without_parent[orphans[i]] = pack('') .. rest
    bytes = bytes + #header - #without_parent[orphans[i]]
  end
end
if not dry then
  -- A full server takes a command that may need memory only behind one that cannot: this removes nothing.
  redis.call('HDEL', data, '^')
  if dirty and becomes_partial() or not is_known then redis.call('HSET', data, '@rewritten', next_rewrite(data)) end
  for name, header in pairs(without_parent) do redis.call('HSET', data, name, header) end
  local members = {}
  for i = 1, #doomed do
    local name = doomed[i]
    if string.sub(name, 1, 1) == 'c' then
      local first = string.find(name, '%z')
      members[#members + 1] = 'i' .. string.sub(name, first + 1) .. string.sub(name, 2, first)
    end
    members[#members + 1] = name
  end
  for from = 1, #members, BATCH do redis.call('ZREM', index, unpack(members, from, math.min(from + BATCH - 1, #members))) end
  if strays[1] then
    redis.call('HSET', data, '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. table.concat(strays))
  end
  for from = 1, #doomed, BATCH do redis.call('HDEL', data, unpack(doomed, from, math.min(from + BATCH - 1, #doomed))) end
  if dirty then forget_pathless() end
  meta.bytes, meta.blobs, meta.writes = meta.bytes - bytes, meta.blobs - removed.b, meta.writes - removed.w
  revise(meta)
  revision = string.format('%d', meta.rev)
  redis.call('HSET', data, '@state', state_of(meta))
  local left = redis.call('ZLEXCOUNT', index, '[c', '(d') + redis.call('ZLEXCOUNT', index, '[w', '(x')
  if left == 0 then redis.call('UNLINK', index, data) end
end
return { removed.c, removed.w, removed.b, bytes, revision }
