-- Shared by the scripts (included): removing fields of a thread.

--- @include lib/revise
--- @include lib/framing
--- @include lib/chunks

-- Records that hot no longer has the whole thread, but still the newest checkpoint of each namespace.
local function becomes_partial(index, data)
  local fill = redis.call('HGET', data, '@complete')
  if not fill then return end
  redis.call('HDEL', data, '@complete')
  local lower = '[c'
  while true do
    local newest = redis.call('ZRANGEBYLEX', index, lower, '(d', 'LIMIT', 0, 1)[1]
    if not newest then return end
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
-- how: a table of options. dry: count only. keeps_empty: keep a thread that has become empty.
--   dirty: the key of cold's missing records, if hot becomes partial.
-- Returns the reply of remove.lua, and the names of all removed fields. Returns false if cold lacks one of them.
local function remove_fields(index, data, meta, argv, begin, how)
  local listed, doomed = {}, {}
  local function doom(name)
    if not listed[name] then doomed[#doomed + 1] = name end
    listed[name] = true
  end
  local orphans = {} -- names of headers whose parent is removed
  for i = begin, #argv do
    local name, kind = argv[i], string.sub(argv[i], 1, 1)
    if kind == '^' then orphans[#orphans + 1] = string.sub(name, 2) else doom(name) end
    if kind == 'c' then
      local first = 'w' .. string.sub(name, 2)
      local upper = '(' .. string.sub(first, 1, -2) .. '\1'
      local members = redis.call('ZRANGEBYLEX', index, '[' .. first, upper, 'LIMIT', 0, 500)
      for _, member in ipairs(members) do doom(member) end
    end
  end
  for i = 1, how.dirty and #doomed or 0 do
    if redis.call('ZSCORE', how.dirty, doomed[i]) then return false end
  end

  -- Read everything first, so an unreadable record raises an error before anything is removed.
  local removed, bytes, strays = { c = 0, w = 0, b = 0, n = 0, p = 0, z = 0 }, 0, {}
  local sizes, short, stored = {}, {}, {}
  for _, name in ipairs(doomed) do
    local kind = string.sub(name, 1, 1)
    local is_read = kind == 'w' or kind == 'n'
    if removed[kind] and not is_read then sizes[name] = redis.call('HSTRLEN', data, name) end
    if is_read or kind == 'b' and sizes[name] <= MAX_ROOT then short[#short + 1] = name end
  end
  for i, value in ipairs(fetch(data, short)) do stored[short[i]] = value end
  for _, name in ipairs(doomed) do
    local kind, value = string.sub(name, 1, 1), stored[name]
    local size = value and #value or sizes[name] or 0
    bytes = bytes + size
    if kind == 'w' and value then
      local pos = 1
      while pos <= size do
        pos = skip(value, pos, 5)
        removed.w = removed.w + 1
      end
      for _, root in ipairs(roots_in(value)) do strays[#strays + 1] = pack(root) end
    elseif size > 0 or value then
      removed[kind] = removed[kind] + 1
    end
    -- A later step of prune removes the chunks that only these refer to.
    if kind == 'n' and value then
      strays[#strays + 1] = as_stray(string.sub(value, 1, 1), string.sub(value, 2))
    elseif kind == 'b' and value and in_chunks(value) then
      strays[#strays + 1] = pack(value)
    end
  end
  local without_parent = {} -- by the header's name
  for _, name in ipairs(orphans) do
    local header = redis.call('HGET', data, name)
    if header then
      without_parent[name] = pack('') .. string.sub(header, skip(header, 1, 1))
      bytes = bytes + #header - #without_parent[name]
    end
  end
  if not how.dry then
    -- A full server accepts a command that may need memory only after one that needs none. This one removes nothing.
    redis.call('HDEL', data, '^')
    if how.dirty then becomes_partial(index, data) end
    redis.call('HSET', data, '@rewritten', next_rewrite(data))
    redis.call('HSET', data, '@state', state_of(meta, '')) -- without the tag, before anything is removed
    for name, header in pairs(without_parent) do redis.call('HSET', data, name, header) end
    local members = {}
    for _, name in ipairs(doomed) do
      local ns, id = string.match(name, '^[c]([^%z]*%z)(.*)$')
      if ns then members[#members + 1] = 'i' .. id .. ns end
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
