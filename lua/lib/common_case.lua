-- Shared by the scripts (included, after lib/thread): the common case of a call, and no more. A script includes what all other cases take behind
-- it, as the server makes the functions of a script anew at each call.

local FIELDS, SEEN = 12, 5 -- a put's fields begin behind FIELDS of argv; what was found in them behind SEEN of found

-- Opens a thread with all that a put writes, in one call (in more where there are thousands). Returns what open_thread does.
-- argv: what put.lua takes.
local function look_up(index, data, argv)
  local count = argv[11] + argv[12]
  local meta, problem, found = open_thread(index, data, argv[1], '@history', unpack(argv, FIELDS + 1, FIELDS + math.min(count, 1000)))
  for from = 1001, meta and count or 0, 1000 do
    local some = redis.call('HMGET', data, unpack(argv, FIELDS + from, FIELDS + math.min(from + 999, count)))
    for i = 1, #some do found[SEEN + from + i - 1] = some[i] end
  end
  return meta, problem, found
end

-- Whether a put is to look at the length of the thread's history: the saver asks for that, or the thread's own @history.
local function is_limited(argv, found)
  return (found[5] or argv[8] ~= '') and argv[8] ~= '-'
end

-- Stores a new checkpoint with new values, if the thread is as its tag says. Returns whether it did; else nothing was done.
--
-- The caller relies on what it put or read, up to the put that set this tag. Since then nothing was removed or replaced: what
-- does that removes the tag, or sets another one. And the tag is set in the same HSET as what it stands for. So a server that
-- lost its newest writes (a failover, a truncated file) has all of it, or an earlier tag.
-- argv: what put.lua takes; meta, found: what look_up answered; is_home: whether cold has all else of the thread.
local function put_known(index, data, argv, meta, found, is_home)
  local n, p, tag = tonumber(argv[11]), tonumber(argv[12]), argv[9]
  if not meta or tag == '' or meta.tag ~= tag or found[4] or n + p > 400 then return false end
  for i = 1, n do
    if found[SEEN + i] then return false end
  end

  local checkpoint, by_age, run, header = argv[1], argv[2], argv[3], argv[4]
  local fields = { '@state', '', checkpoint, header, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil } -- so it need not grow
  local last, bytes, values = 4, #header, FIELDS + n + p
  for i = 1, n + p do
    if not found[SEEN + i] then
      local value = argv[values + i]
      fields[last + 1], fields[last + 2] = argv[FIELDS + i], value
      last, bytes = last + 2, bytes + #value
    end
  end
  if is_home then
    fields[last + 1], fields[last + 2] = '@cold_backed', '1'
    last = last + 2
  end
  revise(meta)
  meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + n
  fields[2] = state_of(meta, argv[10])
  redis.call('HSET', data, unpack(fields, 1, last))
  if by_age ~= '' then
    redis.call('ZADD', index, 0, checkpoint, 0, by_age, 0, run ~= '' and run or by_age)
  elseif run ~= '' then
    redis.call('ZADD', index, 0, checkpoint, 0, run)
  else
    redis.call('ZADD', index, 0, checkpoint)
  end
  touch(index, data, meta, argv[6], argv[7])
  return true
end

-- Stores the pending writes of a task that has none yet, all of them regular, on a thread that is there. Returns whether it did.
-- argv, last: what put_writes.lua takes, up to argv[last]; meta, found: what open_thread answered, with the task's record.
local function put_first_writes(index, data, argv, last, meta, found)
  local member, regular = argv[1], argv[2]
  if not meta or found[4] or regular == '' or last > 5 then return false end
  meta.bytes, meta.writes = meta.bytes + #regular, meta.writes + argv[3]
  redis.call('HSET', data, '@state', state_of(meta, meta.tag), member, regular)
  redis.call('ZADD', index, 0, member)
  touch(index, data, meta, argv[4], argv[5])
  return true
end

-- The pending writes of a checkpoint: a flat list of (task and kind, record); nil where that is not all there is to it.
local function plain_writes(index, data, ns, id)
  local from, writes = 'w' .. ns .. id, {}
  local members = redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  if #members > 100 then return nil end
  local records = members[1] and redis.call('HMGET', data, unpack(members))
  for i = 1, #members do
    if not records[i] or string.find(records[i], '\255chunks', 1, true) then return nil end
    writes[2 * i - 1], writes[2 * i] = string.sub(members[i], #from + 1), records[i]
  end
  return writes
end
