-- Reads a page of a thread's checkpoints, newest first, with the heads of their pending writes and the sizes of channel
-- values. It returns no values.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] upper      upper bound of the range, as ZREVRANGEBYLEX takes it: c... for one namespace, i... for all
-- ARGV[2] lower      lower bound of the range
-- ARGV[3] limit      maximum number of checkpoints
-- ARGV[4] budget     bytes after which the page ends; it also ends after reading four times as many
-- ARGV[5] channel    the channel whose value is measured, escaped; '*' for all, '' for none
--
-- Returns {next, chunks, sizes, values, checkpoint...}, or nil if there is no such thread.
--   next      upper bound of the next page, '' at the end
--   chunks    flat list of (field, bytes) of names and of lists of chunks, each once
--   sizes     flat list of (field, size in bytes) of the chunks below these lists, each once
--   values    flat list of (size of a value's field in bytes, its content if that is a root, else ''), each once
--   A checkpoint is {id, namespace, header, writes, measured}.
--   writes    flat list of (task and kind, index, task path, channel, type, size in bytes)
--   measured  flat list of (position of a channel in the header, position of its value in values), both from 0
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local upper, lower, limit, budget, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return false end

local chunks, sizes, values, bytes, looked = new_chunks(false), {}, {}, 0, 0
local has_size, places = {}, {} -- of chunks; of values by their fields, false for a field without a value

-- Returns the writes in records, without their values.
local function heads_of(records)
  local heads = {}
  for i = 1, #records, 2 do
    local record, pos = records[i + 1], 1
    while pos <= #record do
      local first, last
      heads[#heads + 1] = records[i]
      for _ = 1, 4 do
        first, last, pos = frame(record, pos)
        heads[#heads + 1] = string.sub(record, first, last)
        bytes = bytes + last - first
      end
      first, last, pos = frame(record, pos)
      heads[#heads + 1] = last - first + 1
      bytes = bytes + #records[i] + 16
    end
  end
  return heads
end

-- Adds the size of each chunk below a root to sizes, and the lists to chunks. Returns a problem or nil.
local function measure(root)
  local lists = { children(root, skip(root, 18, 2)) }
  while #lists > 0 do
    local list = table.remove(lists)
    for i = 1, #list do
      local field = list[i]
      if not has_size[field] then
        local size = redis.call('HSTRLEN', data, field)
        if size == 0 then return gone(data, field) end
        has_size[field] = true
        sizes[#sizes + 1] = field
        sizes[#sizes + 1] = size
        bytes = bytes + #field + 16
        if string.byte(field, 1) == 110 then -- 'n'
          local below = redis.call('HGET', data, field)
          add_chunk(chunks, field, below)
          lists[#lists + 1] = children(below, 2)
        end
      end
    end
  end
  return nil
end

-- Measures the value in a field, once. Returns (position in values or false, problem).
local function measured_value(field)
  if places[field] ~= nil then return places[field], nil end
  places[field] = false
  local size, root = redis.call('HSTRLEN', data, field), ''
  if size == 0 then return false, nil end
  if size <= MAX_ROOT then
    local stored = redis.call('HGET', data, field)
    if in_chunks(stored) then
      root = stored
      local problem = measure(root)
      if problem then return false, problem end
    end
  end
  places[field] = #values / 2
  values[#values + 1] = size
  values[#values + 1] = root
  bytes = bytes + #root + 16
  return places[field], nil
end

-- Measures the requested values of a checkpoint. Returns (list, problem).
-- list is flat: (position of the channel, position of the value).
local function measured_values(ns, header)
  local of = links(header)
  local names, problem = names_in(data, of.names, chunks)
  if problem or channel == '' then return {}, problem end
  local tokens, found, place = unpack_frames(of.tokens), {}, nil
  for i = 1, #of.flags do
    if channel == '*' or names[i] == channel then
      local field = value_field(ns, names, tokens, of.slots, i)
      place, problem = measured_value(field)
      if problem then return found, problem end
      if place then
        found[#found + 1] = i - 1
        found[#found + 1] = place
      elseif string.byte(of.flags, i) == 49 and not redis.call('HGET', data, field) then -- '1'; an emptied one is ''
        return found, gone(data, field)
      end
    end
  end
  bytes = bytes + 4 * #found
  return found, nil
end

local checkpoints = newest_first(index, upper, lower, limit)
local page = { '', chunks.flat, sizes, values }
for i = 1, #checkpoints do
  local id, ns, following = unpack(checkpoints[i])
  local header, records, length, measured
  header, problem = read_header(index, data, ns, id)
  if problem then return problem end
  if not header then return gone(data, 'c' .. ns .. id) end
  records, problem, length = pending_writes(index, data, ns, id)
  if problem then return problem end
  measured, problem = measured_values(ns, header)
  if problem then return problem end
  page[#page + 1] = { id, ns, header, heads_of(records), measured }
  bytes, looked = bytes + #header, looked + #header + length
  if bytes + chunks.bytes >= budget or looked >= 4 * budget or i == limit then
    page[1] = following
    break
  end
end
return page
