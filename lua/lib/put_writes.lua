-- Shared by the scripts (included, after lib/thread, lib/common_case and lib/framing): storing the pending writes of a task.

-- Stores the pending writes of a task in any case. Returns how many of them are new.
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

  local fields, members, added = is_home and { '@cold_backed', '1' } or {}, { 0, '' }, 0
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

  local stored = found[4]
  if regular ~= '' then index_too(member) end -- also where all of it is there: see docs/storage-format.md, Crashes
  if regular ~= '' and not stored then
    store(member, regular, 0)
    added = tonumber(count)
  elseif regular ~= '' and stored ~= regular then -- else it is sent again
    local seen, chunks = {}, { stored }
    each_write(stored, function(idx) seen[idx] = true end)
    each_write(regular, function(idx, first, behind)
      if not seen[idx] then chunks[#chunks + 1] = string.sub(regular, first, behind) end
    end)
    if #chunks > 1 then
      store(member, table.concat(chunks), #stored)
      fields[#fields + 1], fields[#fields + 2] = '@rewritten', next_rewrite(data)
      added = #chunks - 1
    end
  end
  for i = 6, last, 2 do
    local special, record = member .. argv[i], argv[i + 1]
    local size = redis.call('HSTRLEN', data, special)
    if size == 0 then added = added + 1 end
    index_too(special)
    store(special, record, size)
  end
  meta.writes = meta.writes + added
  redis.call('HSET', data, '@state', state_of(meta), unpack(fields))
  redis.call('ZADD', index, unpack(members))
  touch(index, data, meta, default, own)
  return added
end

-- Stores the pending writes of a task. Takes what put_any_writes does; returns how many of them are new, or a problem.
local function put_task(index, data, argv, last, is_home)
  local meta, problem, found = open_thread(index, data, argv[1])
  if problem then return problem end
  return put_any_writes(index, data, argv, last, meta, found, is_home)
end

-- Their members of the index; what it takes is as above.
local function members_of(argv, last)
  local members = { argv[2] ~= '' and argv[1] or nil }
  for i = 6, last, 2 do members[#members + 1] = argv[1] .. argv[i] end
  return members
end
