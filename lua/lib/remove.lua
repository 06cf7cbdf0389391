-- Shared by the scripts (included, after lib/thread, lib/framing and lib/chunks): removing fields of a thread.

-- Removes fields of a thread, and their members of the index.
-- argv, begin: the names, as remove.lua takes them, and the position of the first; dry: true to count only; keeps_empty: true to leave a
-- thread that has nothing left.
-- Returns what remove.lua does, and the names of all that was removed.
local function remove_fields(index, data, meta, argv, begin, dry, keeps_empty)
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
    redis.call('HSET', data, '@rewritten', next_rewrite(data), '@state', state_of(meta, ''))
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
    redis.call('HSET', data, '@state', state_of(meta, ''))
    local left = redis.call('ZLEXCOUNT', index, '[c', '(d') + redis.call('ZLEXCOUNT', index, '[w', '(x')
    if left == 0 and not keeps_empty then redis.call('UNLINK', index, data) end
  end
  return { removed.c, removed.w, removed.b, bytes, string.format('%d', meta.rev) }, doomed
end
