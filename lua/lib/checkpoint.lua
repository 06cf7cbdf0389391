-- Shared by the scripts (included): reading one checkpoint. Names are those of docs/storage-format.md: ns, id
-- and the like are escaped and end with their terminator, so that names are made by concatenation alone.

--- @include lib/framing
--- @include lib/chunks

-- Returns true if a sorts above b, by bytes. (Lua's own comparison uses the server's locale.)
local function above(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- Returns the end of the first of the two names in a member of the index.
local function name_ends(member)
  local first = string.find(member, '%z')
  if not first or first == #member or string.byte(member, #member) ~= 0 then
    reading = 'the index'
    damaged()
  end
  return first
end

-- Finds up to limit checkpoints, newest first: of one namespace if the bounds are c..., of all if they are i...
-- Root checkpoints have no member i..., so they are merged with the others here.
-- Returns a list of {id, namespace, upper bound of the checkpoints after it}.
local function newest_first(index, upper, lower, limit)
  local found, others, roots = {}, {}, {}
  if string.sub(upper, 2, 2) == 'c' then
    local members = redis.call('ZREVRANGEBYLEX', index, upper, lower, 'LIMIT', 0, limit)
    for i = 1, #members do
      local first = name_ends(members[i])
      found[i] = { string.sub(members[i], first + 1), string.sub(members[i], 2, first), members[i] }
    end
    return found
  end
  local function of_root(bound) return string.sub(bound, 1, 1) .. 'c\0' .. string.sub(bound, 3) end
  others = redis.call('ZREVRANGEBYLEX', index, upper, lower, 'LIMIT', 0, limit)
  roots = redis.call('ZREVRANGEBYLEX', index, of_root(upper), of_root(lower), 'LIMIT', 0, limit)
  local other, root = 1, 1
  while #found < limit and (others[other] or roots[root]) do
    local member, id = others[other], roots[root] and string.sub(roots[root], 3)
    if id and not (member and above(member, 'i' .. id)) then
      found[#found + 1] = { id, '\0', 'i' .. id }
      root = root + 1
    else
      local first = name_ends(member)
      found[#found + 1] = { string.sub(member, 2, first), string.sub(member, first + 1), member }
      other = other + 1
    end
  end
  return found
end

-- Returns the links of a header as a table:
--   parent (id or ''), run, names (field of the channels' names), flags, slots;
--   tokens, retained (packed, as stored);
--   positions in the header: flags_from, flags_to, retained_from (start of its frame), behind (end of the links).
local function links(header)
  local first, last, pos = frame(header, 1)
  local found = { parent = string.sub(header, first, last) }
  first, last, pos = frame(header, skip(header, pos, 1)) -- over the time
  found.run = string.sub(header, first, last)
  first, last, pos = frame(header, pos)
  found.names = string.sub(header, first, last)
  first, last, pos = frame(header, pos)
  found.flags, found.flags_from, found.flags_to = string.sub(header, first, last), first, last
  first, last, pos = frame(header, pos)
  found.slots = string.sub(header, first, last)
  first, last, pos = frame(header, pos)
  found.tokens, found.retained_from = string.sub(header, first, last), pos
  first, last, pos = frame(header, pos)
  found.retained, found.behind = string.sub(header, first, last), pos
  return found
end

-- Returns the names in the bytes of a chunk, as a list.
local function split_names(packed)
  local list = {}
  for name in string.gmatch(packed, '[^%z]*%z') do list[#list + 1] = name end
  return list
end

-- Returns (names, problem). names is the list of names in a chunk: those of the channels first, then possibly others.
local names_read = {}
local function names_in(data, field, chunks)
  if names_read[field] then return names_read[field], nil end
  local packed = redis.call('HGET', data, field)
  if not packed then return nil, gone(data, field) end
  if chunks and not chunks.seen[field] then add_chunk(chunks, field, packed) end
  names_read[field] = split_names(packed)
  return names_read[field], nil
end

-- Returns the field of the value of entry i (from 1) of a checkpoint, and its version.
-- names: from names_in; tokens: the versions, unpacked.
-- A header has a version once, and each field of its channels repeats it. The limit stops a damaged header from making
-- endless fields.
local MAX_NAMED, named_bytes = 256000000, 0 -- bytes, in one call
local function value_field(ns, names, tokens, slots, i)
  local high, low = string.byte(slots, 2 * i - 1, 2 * i)
  local token = low and tokens[high * 256 + low + 1]
  if not token or not names[i] then damaged() end
  named_bytes = named_bytes + #names[i] + #token
  if named_bytes > MAX_NAMED then damaged() end
  return 'b' .. ns .. names[i] .. token, token
end

-- Returns (header, problem). header is false if there is no such checkpoint.
local function read_header(index, data, ns, id)
  reading = 'checkpoint ' .. string.sub(id, 1, -2)
  local header = redis.call('HGET', data, 'c' .. ns .. id)
  if not header and redis.call('ZSCORE', index, 'c' .. ns .. id) then
    return nil, redis.error_reply('DAMAGED the header of ' .. reading .. ' is gone from ' .. data)
  end
  return header, nil
end

-- Adds the chunks of a checkpoint's values to chunks. Returns (values, problem).
-- values holds the stored values in the order of the entries, false if an entry has none.
local function read_values(data, ns, header, chunks)
  local of = links(header)
  local names, problem = names_in(data, of.names, chunks)
  if problem then return nil, problem end
  local tokens, fields, named = unpack_frames(of.tokens), {}, {}
  for i = 1, #of.flags do
    fields[i] = value_field(ns, names, tokens, of.slots, i)
    if named[names[i]] then damaged() end -- a channel that occurs twice would return its value twice
    named[names[i]] = true
  end
  local values = fetch(data, fields)
  for i = 1, #fields do
    if values[i] then
      problem = read_chunks(data, values[i], chunks)
      if problem then return nil, problem end
    elseif string.byte(of.flags, i) == 49 then -- '1'
      return nil, gone(data, fields[i])
    end
  end
  return values, nil
end

-- Returns (writes, problem, size in bytes). writes is a flat list of (task and kind, record) of a checkpoint.
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

-- Reads a checkpoint, and adds the chunks of its values and writes to chunks. Returns (answer, problem, size).
-- answer is {id, namespace, header, values, writes}, or nil if there is no such checkpoint. size is in bytes, without
-- chunks, plus 64 for each value, as finding it takes time.
local function read_checkpoint(index, data, ns, id, chunks)
  local header, problem = read_header(index, data, ns, id)
  if not header then return nil, problem, 0 end
  local values, writes, size
  values, problem = read_values(data, ns, header, chunks)
  if problem then return nil, problem, 0 end
  writes, problem, size = pending_writes(index, data, ns, id)
  if problem then return nil, problem, 0 end
  for i = 2, #writes, 2 do
    problem = read_chunks_of_writes(data, writes[i], chunks)
    if problem then return nil, problem, 0 end
  end
  size = size + #header + 64 * #values
  for i = 1, #values do size = size + #(values[i] or '') end
  return { id, ns, header, values, writes }, nil, size
end
