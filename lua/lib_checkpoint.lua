-- Shared by the scripts (included, after lib_frames): reading one checkpoint. Names are those of lua/README.md: ns, id
-- and the like are escaped and end with their terminator, so that names are made by concatenation alone.

local BATCH = 1000 -- arguments of one call; Lua's unpack takes fewer than 5,000

-- HMGET of any number of fields.
local function fetch(data, fields)
  local values = {}
  for from = 1, #fields, BATCH do
    local part = redis.call('HMGET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields)))
    for i = 1, #part do values[from + i - 1] = part[i] end
  end
  return values
end

-- The id of the newest checkpoint of a namespace, or nil.
local function newest_id(index, ns)
  local upper = '(c' .. string.sub(ns, 1, -2) .. '\1'
  local member = redis.call('ZREVRANGEBYLEX', index, upper, '[c' .. ns, 'LIMIT', 0, 1)[1]
  return member and string.sub(member, #ns + 2)
end

-- The links of a header: (parent id or '', entries still packed, position behind the links). An entry is a flag, the
-- channel, the version. Flags: '1', its blob was stored when the checkpoint was put; '0', there was none; '-', not of
-- this checkpoint, but held by it (see put).
local function links(header)
  local first, last, pos = frame(header, 1)
  local parent = string.sub(header, first, last)
  first, last, pos = frame(header, skip(header, pos, 2)) -- over the time and the run
  return parent, string.sub(header, first, last), pos
end

-- The stored values of a list of entries (but the '-' ones), false where there is none. Returns (values, problem).
local function blob_values(data, ns, entries)
  local names, flags = {}, {}
  for i = 1, #entries do
    local flag = string.sub(entries[i], 1, 1)
    if flag ~= '-' then
      names[#names + 1] = 'b' .. ns .. string.sub(entries[i], 2)
      flags[#flags + 1] = flag
    end
  end
  local values = fetch(data, names)
  for i = 1, #names do
    if not values[i] and flags[i] == '1' then
      return nil, redis.error_reply('DAMAGED a stored value is gone from ' .. data .. ': ' .. string.gsub(names[i], '%z', '|'))
    end
  end
  return values, nil
end

-- The header of a checkpoint, false where there is no such checkpoint. Returns (header, problem).
local function read_header(index, data, ns, id)
  reading = 'the header of checkpoint ' .. string.sub(id, 1, -2)
  local header = redis.call('HGET', data, 'c' .. ns .. id)
  if not header and redis.call('ZSCORE', index, 'c' .. ns .. id) then
    return nil, redis.error_reply('DAMAGED the header of a checkpoint is gone from ' .. data)
  end
  return header, nil
end

-- The pending writes of a checkpoint: a flat list of (task and kind, record). Returns (list, problem, size in bytes).
local function pending_writes(index, data, ns, id)
  local from = 'w' .. ns .. id
  local members = redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  local records, list, size = fetch(data, members), {}, 0
  for i = 1, #members do
    if not records[i] then
      return nil, redis.error_reply('DAMAGED pending writes of a checkpoint are gone from ' .. data), 0
    end
    list[2 * i - 1] = string.sub(members[i], #from + 1)
    list[2 * i] = records[i]
    size = size + #records[i]
  end
  return list, nil, size
end

-- A checkpoint as get, list and load answer it. Returns (answer, problem, size in bytes);
-- answer is {id, namespace, header, values, writes}, nil where there is no such checkpoint.
local function read_checkpoint(index, data, ns, id)
  local header, problem = read_header(index, data, ns, id)
  if not header then return nil, problem, 0 end
  local _, entries = links(header)
  local values, writes, size
  values, problem = blob_values(data, ns, unpack_frames(entries))
  if problem then return nil, problem, 0 end
  writes, problem, size = pending_writes(index, data, ns, id)
  if problem then return nil, problem, 0 end
  size = size + #header
  for i = 1, #values do size = size + #(values[i] or '') end
  return { id, ns, header, values, writes }, nil, size
end
