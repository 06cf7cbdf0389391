-- Shared by the scripts (included): storing the pending writes of a task.

--- @include lib/thread
--- @include lib/revise
--- @include lib/framing
--- @include lib/chunks

-- Returns true for the index of a special write, which is negative; false for the field of a chunk.
local function is_special(name)
  return string.byte(name, 1) == 45 -- '-'
end

-- Stores the pending writes of a task, without further checks. Returns the reply of put_writes.lua.
-- argv: the arguments of put_writes.lua, up to argv[last].
-- meta, found: results of open_thread, with the task's record.
-- is_home: true if cold has the rest of the thread.
local function put_any_writes(index, data, argv, last, meta, found, is_home)
  local member, regular, count, default, own, key = argv[1], argv[2], argv[3], argv[4], argv[5], argv[6]
  local based, random = string.match(argv[7], '^(%x*) (%x+)$')
  local is_known = meta and based and based ~= '' and is_tag(meta, based)

  -- Calls visit(idx, first, last) for each write of a record, with the positions of all its frames.
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
    meta = new_thread(redis.call('TIME'), fields, key)
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

  -- Stores the chunks that were sent, unless some below these roots are missing. Returns the fields of missing ones.
  local function store_chunks(roots)
    local seen, missing = {}, {}
    local function check_children(list, pos)
      for _, field in ipairs(children(list, pos)) do
        if not seen[field] and not is_known and redis.call('HEXISTS', data, field) == 0 then
          missing[#missing + 1] = field
        end
        seen[field] = true
      end
    end
    for i = 8, last, 2 do seen[argv[i]] = true end
    for _, root in ipairs(roots) do check_children(root, skip(root, 18, 2)) end
    for i = 8, last, 2 do
      if string.byte(argv[i], 1) == 110 then check_children(argv[i + 1], 2) end -- 'n'
    end
    for i = 8, #missing == 0 and last or 0, 2 do
      if not is_special(argv[i]) and redis.call('HEXISTS', data, argv[i]) == 0 then store(argv[i], argv[i + 1], 0) end
    end
    if meta.format < HAS_CHUNKED_WRITES then meta.format = HAS_CHUNKED_WRITES end
    revise(meta) -- a removal that was planned earlier may include chunks that these need
    return missing
  end

  local stored, new, chunked = found[4], regular, {}
  if regular ~= '' then index_too(member) end -- even if the record exists (docs/storage-format.md, Crashes)
  if regular ~= '' and not stored then
    added = tonumber(count)
  elseif regular ~= '' and stored ~= regular then -- an equal record was only sent again
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
    if #missing > 0 then return { 0, '', unpack(missing, 1, math.min(#missing, BATCH)) } end
  end
  if added > 0 then store(member, (stored or '') .. new, #(stored or '')) end
  if added > 0 and stored then
    fields[#fields + 1], fields[#fields + 2] = '@rewritten', next_rewrite(data)
    local stray = '' -- chunks of writes that kept their first value
    for _, root in ipairs(chunked[1] and roots_in(regular) or {}) do stray = stray .. pack(root) end
    if stray ~= '' then
      fields[#fields + 1], fields[#fields + 2] = '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. stray
    end
  end
  for i = 8, last, 2 do
    if not is_special(argv[i]) then break end -- chunks follow
    local special, record = member .. argv[i], argv[i + 1]
    local old = redis.call('HGET', data, special)
    if not old then
      added = added + 1
    elseif old ~= record then
      revise(meta) -- as the counters may stay the same
    end
    index_too(special)
    store(special, record, #(old or ''))
  end
  meta.writes = meta.writes + added
  -- A tag needs one call together with everything it proves.
  if is_known and #chunked > 0 and #fields <= BATCH then set_tag(meta, random) end
  fields[2] = state_of(meta, meta.tag)
  for from = 1, #fields, BATCH do
    redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields)))
  end
  redis.call('ZADD', index, unpack(members))
  touch(index, data, meta, default, own)
  return based and { added, random == string.sub(meta.tag, -16) and meta.tag or '' } or added
end

-- Opens the thread and stores the pending writes of a task. Returns the result of put_any_writes, or a problem.
local function put_task(index, data, argv, last, is_home)
  local meta, problem, found = open_thread(index, data, argv[1], '@key')
  problem = problem or check_key(meta, found[5], argv[6])
  if problem then return problem end
  return put_any_writes(index, data, argv, last, meta, found, is_home)
end

-- Returns the index members of the writes in argv.
local function members_of(argv, last)
  local members = { argv[2] ~= '' and argv[1] or nil }
  for i = 8, last, 2 do
    if is_special(argv[i]) then members[#members + 1] = argv[1] .. argv[i] end
  end
  return members
end
