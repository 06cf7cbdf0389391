-- Removes fields of a thread, and their members of the index. One step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] revision   the revision the plan was made at, or the one the last step answered
-- ARGV[2] dry        '1' to count alone
-- ARGV[3..]          names as in docs/storage-format.md: c, a header, with up to 500 of the checkpoint's records of writes; w, a
--                    record of writes; b, a value; n, p, z, a chunk; r, a run's member; s, a call's; @gc_roots. What is below a value,
--                    a write or a list of chunks is noted in @gc_roots, unless that goes too. ^ and the name of a header: its parent alone,
--                    as that goes; the checkpoint stays
--
-- Returns {checkpoints, writes, values, bytes, revision}: what was removed, and the new revision. nil where the thread was
-- put to, or something else was removed, since the plan was made (or the thread is gone): nothing was removed.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks

local index, data = KEYS[1], KEYS[2]
local revision, dry = ARGV[1], ARGV[2] == '1'

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
for i = 3, #ARGV do
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
    for _, root in ipairs(roots_in(record)) do strays[#strays + 1] = pack(root) end
  elseif removed[kind] and redis.call('HEXISTS', data, name) == 1 then
    removed[kind] = removed[kind] + 1
  end
  if kind ~= '@' then bytes = bytes + size end
  -- What was only named by what goes now is noted, until a later step removes it.
  if kind == 'n' and size > 0 then
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
  redis.call('HSET', data, '@rewritten', next_rewrite(data))
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
  if strays[1] and not listed['@gc_roots'] then
    redis.call('HSET', data, '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. table.concat(strays))
  end
  for from = 1, #doomed, BATCH do redis.call('HDEL', data, unpack(doomed, from, math.min(from + BATCH - 1, #doomed))) end
  meta.bytes, meta.blobs, meta.writes = meta.bytes - bytes, meta.blobs - removed.b, meta.writes - removed.w
  revise(meta)
  revision = string.format('%d', meta.rev)
  redis.call('HSET', data, '@state', state_of(meta))
  local left = redis.call('ZLEXCOUNT', index, '[c', '(d') + redis.call('ZLEXCOUNT', index, '[w', '(x')
  if left == 0 then redis.call('UNLINK', index, data) end
end
return { removed.c, removed.w, removed.b, bytes, revision }
