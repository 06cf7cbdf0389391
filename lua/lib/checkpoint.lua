-- Shared by the scripts (included, after lib/framing): reading one checkpoint. Names are those of docs/storage-format.md: ns, id
-- and the like are escaped and end with their terminator, so that names are made by concatenation alone.

-- Whether a sorts above b, by bytes. (Lua's own comparison asks the server's locale.)
local function above(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- Where the first of the two names in a member of the index ends.
local function name_ends(member)
  local first = string.find(member, '%z')
  if not first or first == #member or string.byte(member, #member) ~= 0 then
    reading = 'the index'
    damaged()
  end
  return first
end

-- Finds up to limit checkpoints, newest first: those of one namespace, where the bounds are c..., or of all, where they are
-- i...; the root's are in the order of its namespace alone, and are merged with the others here.
-- Returns a list of {id, namespace, where to go on below it}.
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

-- The links of a header: {parent = id or '', run, names = field of the channels' names, flags, slots, tokens, retained (packed as
-- they are stored), and positions: flags_from, flags_to, retained_from = where its frame begins, behind = behind the links}.
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

-- The names in the bytes of a chunk, as a list.
local function split_names(packed)
  local list = {}
  for name in string.gmatch(packed, '[^%z]*%z') do list[#list + 1] = name end
  return list
end

-- The names that a chunk holds, as a list; more than the channels, in front, may be there. Returns (names, problem).
local names_read = {}
local function names_in(data, field, chunks)
  if names_read[field] then return names_read[field], nil end
  local packed = redis.call('HGET', data, field)
  if not packed then return nil, gone(data, field) end
  if chunks and not chunks.seen[field] then add_chunk(chunks, field, packed) end
  names_read[field] = split_names(packed)
  return names_read[field], nil
end

-- The field of the value of entry i (from 1) of a checkpoint, and its version.
-- names: of names_in; tokens: the versions, unpacked.
-- A version is in a header once, and in the field of each of its channels: so a few bytes might make fields without end.
local MAX_NAMED, named_bytes = 256000000, 0 -- bytes, in one call
local function value_field(ns, names, tokens, slots, i)
  local high, low = string.byte(slots, 2 * i - 1, 2 * i)
  local token = low and tokens[high * 256 + low + 1]
  if not token or not names[i] then damaged() end
  named_bytes = named_bytes + #names[i] + #token
  if named_bytes > MAX_NAMED then damaged() end
  return 'b' .. ns .. names[i] .. token, token
end

-- The header of a checkpoint, false where there is no such checkpoint. Returns (header, problem).
local function read_header(index, data, ns, id)
  reading = 'checkpoint ' .. string.sub(id, 1, -2)
  local header = redis.call('HGET', data, 'c' .. ns .. id)
  if not header and redis.call('ZSCORE', index, 'c' .. ns .. id) then
    return nil, redis.error_reply('DAMAGED the header of ' .. reading .. ' is gone from ' .. data)
  end
  return header, nil
end

-- The stored values of a checkpoint, in the order of its entries, false where there is none; their chunks go to chunks.
-- Returns (values, problem).
local function read_values(data, ns, header, chunks)
  local of = links(header)
  local names, problem = names_in(data, of.names, chunks)
  if problem then return nil, problem end
  local tokens, fields, named = unpack_frames(of.tokens), {}, {}
  for i = 1, #of.flags do
    fields[i] = value_field(ns, names, tokens, of.slots, i)
    if named[names[i]] then damaged() end -- a channel twice: its value would be answered twice, too
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

-- A checkpoint as get, list and load answer it; the chunks of its values and writes go to chunks. Returns (answer, problem, size in
-- bytes without chunks, to which each value counts 64 more, as finding it takes time); answer is {id, namespace, header, values, writes}, nil where there is no such checkpoint.
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
