-- Reads a page of a thread's checkpoints, newest first. Values and pending writes are measured, and not returned. Only
-- short pending writes, and all those of an encrypted thread, are returned.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] upper      upper bound of the range, as ZREVRANGEBYLEX takes it: c... for one namespace, i... for all
-- ARGV[2] lower      lower bound of the range
-- ARGV[3] limit      maximum number of checkpoints
-- ARGV[4] budget     bytes after which the page ends; it also ends once four times as many were read
-- ARGV[5] channel    the channel whose value is measured, escaped; '*' for all, '' for none
-- ARGV[6] longest    maximum size in bytes of a pending write whose value is returned; -1 for none
--
-- Returns {next, chunks, sizes, values, checkpoint...}, or nil if there is no such thread.
--   next      upper bound of the next page, '' at the end
--   chunks    flat list of (field, bytes) of names chunks, lists of chunks, and chunks of short writes, each once
--   sizes     flat list of (field, size in bytes) of the other chunks in these lists, each once
--   values    flat list of (size of a value's field in bytes, its root or '' if it has none), each once
-- A checkpoint is {id, namespace, header, writes, measured}.
--   writes    flat list of (task and kind, index, task path, channel, type, size in bytes, value or '' if it is too
--             long; of a write in chunks, its root). If the thread is encrypted: flat list of (task and kind, record)
--   measured  flat list of (position of a channel in the header, position of its value in values), both from 0
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local upper, lower, limit, budget, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local longest = tonumber(ARGV[6])
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return false end

local chunks, values, bytes, looked, is_encrypted = new_chunks(false), {}, 0, 0, meta.format >= IS_ENCRYPTED
chunks.sizes = {}
local places = {} -- position of each value by its field, false for a field without a value

-- Reads the lists of chunks of a write, and its other chunks if they are short, else their sizes.
local returned = {}
local function read_write(root)
  local own, total = new_chunks(false), 0
  own.sizes = {}
  read_chunks(data, root, own)
  for i = 2, #own.sizes, 2 do total = total + own.sizes[i] end
  for i = 1, #own.flat, 2 do
    if not chunks.seen[own.flat[i]] then add_chunk(chunks, own.flat[i], own.flat[i + 1]) end
  end
  for i = 1, #own.sizes, 2 do
    local field = own.sizes[i]
    if total < longest and not returned[field] then
      returned[field] = true
      add_chunk(chunks, field, redis.call('HGET', data, field))
    elseif total >= longest and not chunks.seen[field] then
      chunks.seen[field], chunks.bytes = true, chunks.bytes + #field + 16
      chunks.sizes[#chunks.sizes + 1], chunks.sizes[#chunks.sizes + 2] = field, own.sizes[i + 1]
    end
  end
end

-- Returns the writes in records, with the size of each value, and the value if it is short.
local function heads_of(records)
  local heads = {}
  for i = 1, #records, 2 do
    local record, pos, first, last = records[i + 1], 1, nil, nil
    while pos <= #record do
      heads[#heads + 1] = records[i]
      for part = 1, 5 do
        first, last, pos = frame(record, pos)
        heads[#heads + 1] = part < 5 and string.sub(record, first, last) or last - first + 1
        if part < 5 then bytes = bytes + last - first end
      end
      local is_root = heads[#heads - 1] == IN_CHUNKS
      local value = (is_root or last - first < longest) and string.sub(record, first, last) or ''
      if is_root then read_write(value) end
      heads[#heads + 1] = value
      bytes = bytes + #records[i] + 16 + #value
    end
  end
  return heads
end

-- Measures the value in a field, once. Returns its position in values, or false.
local function measured_value(field)
  if places[field] ~= nil then return places[field] end
  places[field] = false
  local size = redis.call('HSTRLEN', data, field)
  if size == 0 then return false end
  local root = size <= MAX_ROOT and redis.call('HGET', data, field) or ''
  if not in_chunks(root) then root = '' end
  read_chunks(data, root, chunks)
  places[field] = math.floor(#values / 2)
  values[#values + 1], values[#values + 2] = size, root
  bytes = bytes + #root + 16
  return places[field]
end

-- Measures the requested values of a checkpoint. Returns the list `measured` of the reply.
local function measured_values(ns, header)
  local of = links(header)
  local names = names_in(data, of.names, chunks)
  if channel == '' then return {} end
  local tokens, found = unpack_frames(of.tokens), {}
  for i = 1, #of.flags do
    if channel == '*' or names[i] == channel then
      local field = value_field(ns, names, tokens, of.slots, i)
      local place = measured_value(field)
      if place then
        found[#found + 1], found[#found + 2] = i - 1, place
      elseif string.byte(of.flags, i) == 49 and not redis.call('HGET', data, field) then -- '1'; an emptied one is ''
        gone(field)
      end
    end
  end
  bytes = bytes + 4 * #found
  return found
end

local checkpoints = newest_first(index, upper, lower, limit)
local page = { '', chunks.flat, chunks.sizes, values }
for i = 1, #checkpoints do
  local id, ns, following = unpack(checkpoints[i])
  local header = read_header(index, data, ns, id) or gone('c' .. ns .. id)
  local records = pending_writes(index, data, ns, id)
  local writes = is_encrypted and records or heads_of(records)
  for j = 2, is_encrypted and #records or 0, 2 do
    for _, root in ipairs(roots_in(records[j])) do read_write(root) end
  end
  page[#page + 1] = { id, ns, header, writes, measured_values(ns, header) }
  bytes, looked = bytes + #header + (is_encrypted and records.size or 0), looked + #header + records.size
  if bytes + chunks.bytes >= budget or looked >= 4 * budget or i == limit then
    page[1] = following
    break
  end
end
return page
