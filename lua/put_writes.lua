-- Stores the pending writes of one task on one checkpoint, which need not exist yet.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] member     the task's member of the index: w, namespace, checkpoint id, task id
-- ARGV[2] regular    record of the regular writes, or ''; of each write: frames index, task path, channel, type, bytes
-- ARGV[3] count      how many regular writes that are
-- ARGV[4] default    the saver's TTL in milliseconds, or ''
-- ARGV[5] own        the thread's own TTL from now on in milliseconds, or ''
-- ARGV[6..]          pairs: a special write's index (negative), its record
--
-- A regular write that is there keeps its first value; a special one takes the newest.
-- Returns how many writes are new.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames

local index, data = KEYS[1], KEYS[2]
local member, regular, count, default, own = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Calls visit(idx, first, last) for each write of a record.
local function each_write(record, visit)
  local pos = 1
  while pos <= #record do
    local first, last, rest = frame(record, pos)
    local following = skip(record, rest, 4)
    visit(string.sub(record, first, last), pos, following - 1)
    pos = following
  end
end

local meta, problem, found = open_thread(index, data, member)
if problem then return problem end

local fields, members, added = {}, { 0, '' }, 0
meta = meta or new_thread(redis.call('TIME'))
local function store(field, record, size_before)
  fields[#fields + 1] = field
  fields[#fields + 1] = record
  members[#members + 1] = 0
  members[#members + 1] = field
  meta.bytes = meta.bytes + #record - size_before
end

local stored = found[3]
if regular ~= '' and not stored then
  store(member, regular, 0)
  added = tonumber(count)
elseif regular ~= '' then
  local seen, parts = {}, { stored }
  each_write(stored, function(idx) seen[idx] = true end)
  each_write(regular, function(idx, first, last)
    if not seen[idx] then parts[#parts + 1] = string.sub(regular, first, last) end
  end)
  if #parts > 1 then
    store(member, table.concat(parts), #stored)
    added = #parts - 1
  end
end
for i = 6, #ARGV, 2 do
  local special, record = member .. ARGV[i], ARGV[i + 1]
  local size = redis.call('HSTRLEN', data, special)
  if size == 0 then added = added + 1 end
  store(special, record, size)
end
meta.writes = meta.writes + added
redis.call('ZADD', index, unpack(members))
redis.call('HSET', data, '@state', state_of(meta), unpack(fields))
touch(index, data, meta, default, own)
return added
