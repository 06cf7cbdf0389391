-- Shared by the scripts (included): reading one checkpoint. As in docs/storage-format.md, ns and id are escaped and end
-- with their terminator, so fields and members are made by concatenation.

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
--   parent (id or ''), names (field of the channels' names), flags, slots;
--   tokens, retained (packed, as stored);
--   positions in the header: flags_from, flags_to, retained_from (start of its frame), behind (end of the links).
local function links(header)
  local parts, ends, first, pos = {}, {}, nil, 1
  for i = 1, 8 do
    first, ends[i], pos = frame(header, pos)
    parts[i] = string.sub(header, first, ends[i])
  end
  return { -- without the time and the run
    parent = parts[1], names = parts[4], flags = parts[5], slots = parts[6], tokens = parts[7], retained = parts[8],
    flags_from = ends[5] - #parts[5] + 1, flags_to = ends[5], retained_from = ends[7] + 1, behind = pos,
  }
end

-- Returns the names in the bytes of a chunk, as a list.
local function split_names(packed)
  local list = {}
  for name in string.gmatch(packed, '[^%z]*%z') do list[#list + 1] = name end
  return list
end

-- Returns the list of names in a chunk: those of the channels first, then possibly others.
local names_read = {}
local function names_in(data, field, chunks)
  if not names_read[field] then
    local packed = redis.call('HGET', data, field) or gone(field)
    if chunks and not chunks.seen[field] then add_chunk(chunks, field, packed) end
    names_read[field] = split_names(packed)
  end
  return names_read[field]
end

-- Returns the field of the value of entry i (from 1) of a checkpoint, and its version.
-- names: from names_in; tokens: the versions, unpacked.
-- A header has each version once, but each of its channels' fields contains it. The limit keeps a damaged header from
-- making endless fields.
local MAX_NAMED, named_bytes = 256000000, 0 -- bytes, in one call
local function value_field(ns, names, tokens, slots, i)
  local high, low = string.byte(slots, 2 * i - 1, 2 * i)
  local token = low and tokens[high * 256 + low + 1]
  if not token or not names[i] then damaged() end
  named_bytes = named_bytes + #names[i] + #token
  if named_bytes > MAX_NAMED then damaged() end
  return 'b' .. ns .. names[i] .. token, token
end

-- Returns a header, or false if there is no such checkpoint.
local function read_header(index, data, ns, id)
  reading = 'checkpoint ' .. string.sub(id, 1, -2)
  local header = redis.call('HGET', data, 'c' .. ns .. id)
  if not header and redis.call('ZSCORE', index, 'c' .. ns .. id) then
    stop('DAMAGED a header is gone, that of ' .. reading)
  end
  return header
end

-- Adds the chunks of a checkpoint's values to chunks. Returns the stored values in the order of the entries, false if
-- an entry has none.
local function read_values(data, ns, header, chunks)
  local of = links(header)
  local names, tokens, fields, named = names_in(data, of.names, chunks), unpack_frames(of.tokens), {}, {}
  for i = 1, #of.flags do
    fields[i] = value_field(ns, names, tokens, of.slots, i)
    if named[names[i]] then damaged() end -- a repeated channel would return its value twice
    named[names[i]] = true
  end
  local values = fetch(data, fields)
  for i = 1, #fields do
    if values[i] then
      read_chunks(data, values[i], chunks)
    elseif string.byte(of.flags, i) == 49 then -- '1'
      gone(fields[i])
    end
  end
  return values
end

-- Returns the pending writes of a checkpoint, a flat list of (task and kind, record). Its field `size` is in bytes.
local function pending_writes(index, data, ns, id)
  local from = 'w' .. ns .. id
  local members = redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  local records, list = fetch(data, members), { size = 0 }
  for i = 1, #members do
    if not records[i] then stop('DAMAGED pending writes of a checkpoint are gone') end
    list[2 * i - 1], list[2 * i] = string.sub(members[i], #from + 1), records[i]
    list.size = list.size + #records[i]
  end
  return list
end

-- Reads a checkpoint, and adds the chunks of its values and writes to chunks. Returns nil if there is no such
-- checkpoint, else {id, namespace, header, values, writes}. Its field `size` is the number of bytes without chunks,
-- plus 64 for each value, because each takes time.
local function read_checkpoint(index, data, ns, id, chunks)
  local header = read_header(index, data, ns, id)
  if not header then return nil end
  local values, writes = read_values(data, ns, header, chunks), pending_writes(index, data, ns, id)
  for i = 2, #writes, 2 do read_chunks_of_writes(data, writes[i], chunks) end
  local size = writes.size + #header + 64 * #values
  for i = 1, #values do size = size + #(values[i] or '') end
  return { id, ns, header, values, writes, size = size }
end
