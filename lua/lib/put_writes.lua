-- Shared by the scripts (included, after lib/thread, lib/framing and lib/chunks): storing the pending writes of a task.

-- True for the index of a special write, which is negative; false for the field of a chunk.
local function is_special(name)
  return string.byte(name, 1) == 45 -- '-'
end

-- Stores the pending writes of a task in any case. Returns how many of them are new. If chunks that they need are neither
-- stored nor sent, it writes nothing, and returns a list of their fields.
-- argv: what put_writes.lua takes, up to argv[last]; meta, found: what open_thread answered, with the task's record; is_home: whether cold has all
-- else of the thread.
local function put_any_writes(index, data, argv, last, meta, found, is_home)
  local member, regular, count, default, own = argv[1], argv[2], argv[3], argv[4], argv[5]

  -- Calls visit(idx, first, last) for each write of a record.
  local function each_write(record, visit)
    local pos = 1
    while pos <= #record do
      local first, behind, rest = frame(record, pos)
      local following = skip(record, rest, 4)
      visit(string.sub(record, first, behind), pos, following - 1)
      pos = following
    end
  end

  local fields, members, added = { '@state', '' }, { 0, '' }, 0
  if is_home then fields[3], fields[4] = '@cold_backed', '1' end
  if not meta then
    meta = new_thread(redis.call('TIME'))
    fields[#fields + 1], fields[#fields + 2] = '@rewritten', meta.rev
  end
  local function index_too(member)
    members[#members + 1] = 0
    members[#members + 1] = member
  end
  local function store(field, record, size_before)
    fields[#fields + 1] = field
    fields[#fields + 1] = record
    meta.bytes = meta.bytes + #record - size_before
  end

  -- Stores what was sent of the chunks below these roots. Returns those that are missing.
  local function store_chunks(roots)
    local seen, missing = {}, {}
    local function check_children(list, pos)
      for _, field in ipairs(children(list, pos)) do
        if not seen[field] and redis.call('HEXISTS', data, field) == 0 then missing[#missing + 1] = field end
        seen[field] = true
      end
    end
    for i = 6, last, 2 do seen[argv[i]] = true end
    for _, root in ipairs(roots) do check_children(root, skip(root, 18, 2)) end
    for i = 6, last, 2 do
      if string.byte(argv[i], 1) == 110 then check_children(argv[i + 1], 2) end -- 'n'
    end
    for i = 6, #missing == 0 and last or 0, 2 do
      if not is_special(argv[i]) and redis.call('HEXISTS', data, argv[i]) == 0 then store(argv[i], argv[i + 1], 0) end
    end
    if meta.format < HAS_CHUNKED_WRITES then meta.format = HAS_CHUNKED_WRITES end
    revise(meta) -- a removal that was planned before may take chunks that these rely on
    return missing
  end

  local stored, new, chunked = found[4], regular, {}
  if regular ~= '' then index_too(member) end -- also where all of it is there: see docs/storage-format.md, Crashes
  if regular ~= '' and not stored then
    added = tonumber(count)
  elseif regular ~= '' and stored ~= regular then -- else it is sent again
    local seen, more = {}, {}
    each_write(stored, function(idx) seen[idx] = true end)
    each_write(regular, function(idx, first, behind)
      if not seen[idx] then more[#more + 1] = string.sub(regular, first, behind) end
    end)
    new, added = table.concat(more), #more
  end
  if added > 0 then chunked = roots_in(new) end
  if #chunked > 0 then
    local missing = store_chunks(chunked)
    if #missing > 0 then return missing end
  end
  if added > 0 then store(member, (stored or '') .. new, #(stored or '')) end
  if added > 0 and stored then
    fields[#fields + 1], fields[#fields + 2] = '@rewritten', next_rewrite(data)
    local stray = '' -- of what was not stored, chunks may have been
    for _, root in ipairs(chunked[1] and roots_in(regular) or {}) do stray = stray .. pack(root) end
    if stray ~= '' then
      fields[#fields + 1], fields[#fields + 2] = '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. stray
    end
  end
  for i = 6, last, 2 do
    if not is_special(argv[i]) then break end -- chunks follow
    local special, record = member .. argv[i], argv[i + 1]
    local size = redis.call('HSTRLEN', data, special)
    if size == 0 then added = added + 1 end
    index_too(special)
    store(special, record, size)
  end
  meta.writes = meta.writes + added
  fields[2] = state_of(meta, meta.tag)
  for from = 1, #fields, BATCH do
    redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields)))
  end
  redis.call('ZADD', index, unpack(members))
  touch(index, data, meta, default, own)
  return added
end

-- Stores the pending writes of a task. Takes and returns what put_any_writes does, or a problem.
local function put_task(index, data, argv, last, is_home)
  local meta, problem, found = open_thread(index, data, argv[1])
  if problem then return problem end
  return put_any_writes(index, data, argv, last, meta, found, is_home)
end

-- Their members of the index; what it takes is as above.
local function members_of(argv, last)
  local members = { argv[2] ~= '' and argv[1] or nil }
  for i = 6, last, 2 do
    if is_special(argv[i]) then members[#members + 1] = argv[1] .. argv[i] end
  end
  return members
end
