-- Shared by the scripts (included): removing fields of a thread.

--- @include lib/revise
--- @include lib/framing
--- @include lib/chunks

-- Records that hot no longer has the whole thread, but still the newest checkpoint of each namespace.
-- Returns true if it had all until now.
local function becomes_partial(index, data)
  local fill = redis.call('HGET', data, '@complete')
  if not fill then return false end
  redis.call('HDEL', data, '@complete')
  local lower = '[c'
  while true do
    local newest = redis.call('ZRANGEBYLEX', index, lower, '(d', 'LIMIT', 0, 1)[1]
    if not newest then return true end
    local ns = string.sub(newest, 2, (string.find(newest, '%z')))
    redis.call('HSET', data, '@has_latest' .. ns, fill)
    lower = '(c' .. string.sub(ns, 1, -2) .. '\1'
  end
end

-- Removes the entries of missing checkpoints from @no_task_path: writes that cold returned without their task paths.
local function forget_pathless(index, data)
  local noted, left = redis.call('HGET', data, '@no_task_path'), {}
  if not noted then return end
  for _, writes in ipairs(unpack_frames(noted)) do
    if redis.call('ZSCORE', index, 'c' .. string.sub(writes, 2)) then left[#left + 1] = pack(writes) end
  end
  redis.call('HSET', data, '@no_task_path', table.concat(left))
end

-- Removes fields of a thread, and their members of the index.
-- argv, begin: the names, as remove.lua takes them, and the position of the first.
-- how: a table of options. dry: count only. is_known: the histories that processes remember stay valid.
--   keeps_empty: keep a thread that has become empty. dirty: the key of cold's missing records, if hot becomes partial.
-- Returns the reply of remove.lua, and the names of all removed fields. Returns false if cold lacks one of them.
local function remove_fields(index, data, meta, argv, begin, how)
  local listed, doomed = {}, {}
  local function doom(name)
    if not listed[name] then
      listed[name] = true
      doomed[#doomed + 1] = name
    end
  end
  local orphans = {} -- the names of headers that lose their parent
  for i = begin, #argv do
    local kind = string.sub(argv[i], 1, 1)
    if kind == '^' then
      orphans[#orphans + 1] = string.sub(argv[i], 2)
    else
      doom(argv[i])
    end
    if kind == 'c' then
      local first = 'w' .. string.sub(argv[i], 2)
      local upper = '(' .. string.sub(first, 1, -2) .. '\1'
      local members = redis.call('ZRANGEBYLEX', index, '[' .. first, upper, 'LIMIT', 0, 500)
      for j = 1, #members do doom(members[j]) end
    end
  end

  for i = 1, how.dirty and #doomed or 0 do
    if redis.call('ZSCORE', how.dirty, doomed[i]) then return false end
  end

  -- First everything is read, so that an unreadable record raises before anything is removed.
  local removed, bytes, strays = { c = 0, w = 0, b = 0, n = 0, p = 0, z = 0 }, 0, {}
  local sizes, short, stored = {}, {}, {}
  for i = 1, #doomed do
    local kind = string.sub(doomed[i], 1, 1)
    local size = removed[kind] and kind ~= 'w' and redis.call('HSTRLEN', data, doomed[i])
    sizes[i] = size or 0
    local is_root = kind == 'b' and size > 0 and size <= MAX_ROOT
    if kind == 'w' or kind == 'n' or is_root then short[#short + 1] = doomed[i] end
  end
  local found = fetch(data, short)
  for i = 1, #short do stored[short[i]] = found[i] end
  for i = 1, #doomed do
    local name = doomed[i]
    local kind, size, value = string.sub(name, 1, 1), sizes[i], stored[name]
    if kind == 'w' and value then
      local pos = 1
      size = #value
      while pos <= size do
        pos = skip(value, pos, 5)
        removed.w = removed.w + 1
      end
      for _, root in ipairs(roots_in(value)) do strays[#strays + 1] = pack(root) end
    elseif kind ~= 'w' and removed[kind] and (size > 0 or redis.call('HEXISTS', data, name) == 1) then
      removed[kind] = removed[kind] + 1
    end
    bytes = bytes + size
    -- A later step removes the chunks that only these named.
    if kind == 'n' and value then
      strays[#strays + 1] = as_stray(string.sub(value, 1, 1), string.sub(value, 2))
    elseif kind == 'b' and value and in_chunks(value) then
      strays[#strays + 1] = pack(value)
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
  if not how.dry then
    -- A full server accepts a command that may need memory only after one that needs none. This one removes nothing.
    redis.call('HDEL', data, '^')
    if how.dirty and becomes_partial(index, data) or not how.is_known then
      redis.call('HSET', data, '@rewritten', next_rewrite(data))
    end
    redis.call('HSET', data, '@state', state_of(meta, '')) -- without the tag, before anything is removed
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
    for from = 1, #members, BATCH do
      redis.call('ZREM', index, unpack(members, from, math.min(from + BATCH - 1, #members)))
    end
    if strays[1] and not listed['@gc_roots'] then
      redis.call('HSET', data, '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. table.concat(strays))
    end
    for from = 1, #doomed, BATCH do
      redis.call('HDEL', data, unpack(doomed, from, math.min(from + BATCH - 1, #doomed)))
    end
    if how.dirty then forget_pathless(index, data) end
    meta.bytes, meta.blobs, meta.writes = meta.bytes - bytes, meta.blobs - removed.b, meta.writes - removed.w
    revise(meta)
    redis.call('HSET', data, '@state', state_of(meta, ''))
    local left = redis.call('ZLEXCOUNT', index, '[c', '(d') + redis.call('ZLEXCOUNT', index, '[w', '(x')
    if left == 0 and not how.keeps_empty then redis.call('UNLINK', index, data) end
  end
  return { removed.c, removed.w, removed.b, bytes, string.format('%d', meta.rev) }, doomed
end
