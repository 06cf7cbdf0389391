-- Shared by the scripts (included): the chunks of long values (docs/storage-format.md).
--
-- The field of a chunk is its kind and a digest of 16 bytes. The kind is n (a list of chunks), p (bytes) or z
-- (compressed bytes).
-- The bytes of a list of chunks are the kind of its children, and their digests. Between these two, a root also has a
-- digest of the rest, and frames of type and head. The bytes of a pending write in chunks are such a root.

--- @include lib/framing

local MAX_ROOT = 4096 -- bytes; no list of chunks is longer
local IN_CHUNKS = '\255chunks' -- the type of a pending write whose bytes are the root of its chunks
local BATCH = 1000 -- arguments of one call; Lua's unpack takes fewer than 5,000

-- Reads any number of fields by HMGET.
local function fetch(data, fields)
  local values = {}
  for from = 1, #fields, BATCH do
    local some = redis.call('HMGET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields)))
    if #fields <= BATCH then return some end
    for i = 1, #some do values[from + i - 1] = some[i] end
  end
  return values
end

-- Raises the error for a field that is gone.
local function gone(field)
  local name = string.gsub(field, '[^%w%p]', '?')
  stop('DAMAGED a stored value is gone: ' .. name .. ', of ' .. reading)
end

-- Returns true if a stored value is a root. Its first byte is a kind. Other values begin with a digit, or are empty.
local function in_chunks(value)
  local kind = string.byte(value, 1)
  return kind == 112 or kind == 110 or kind == 122 -- p, n, z
end

-- Returns an empty collection of chunks for a reply. flat is a list of (field, bytes), each once, and bytes their size.
-- leaves: true to collect all chunks, false to collect only lists of chunks.
-- roots: digests from the roots of values whose chunks are left out, or nil.
local function new_chunks(leaves, roots)
  return { flat = {}, seen = {}, bytes = 0, leaves = leaves, roots = roots or '' }
end

local function add_chunk(chunks, field, bytes)
  chunks.seen[field] = true
  chunks.flat[#chunks.flat + 1], chunks.flat[#chunks.flat + 2] = field, bytes
  chunks.bytes = chunks.bytes + #field + #bytes
end

-- Returns a list of chunks in the form of a root, as @gc_roots holds it.
local function as_stray(kind, digests)
  return pack(kind .. string.rep('\0', 16) .. '0:0:' .. digests)
end

-- Returns the fields of the children in a list of chunks. Their digests begin at pos. A child may occur twice.
local function children(list, pos)
  if not in_chunks(list) or pos > #list or (#list - pos + 1) % 16 > 0 then damaged() end
  local kind, fields, n = string.sub(list, 1, 1), {}, 0
  for at = pos, #list, 16 do
    n = n + 1
    fields[n] = kind .. string.sub(list, at, at + 15)
  end
  return fields
end

-- Returns the roots of the pending writes in a record that are stored in chunks.
local function roots_in(record)
  local roots, pos = {}, string.find(record, IN_CHUNKS, 1, true) and 1 or #record + 1
  while pos <= #record do
    local first, last, following = frame(record, skip(record, pos, 3))
    local is_root = string.sub(record, first, last) == IN_CHUNKS
    first, last, pos = frame(record, following)
    if is_root then roots[#roots + 1] = string.sub(record, first, last) end
  end
  return roots
end

-- Adds the chunks of a stored value to chunks (from new_chunks): lists of chunks, and with `leaves` also the others.
-- It reads each chunk once, level by level, so the stored bytes limit the time. If chunks is `lenient`, it skips missing
-- chunks. If chunks has `sizes`, a flat list, it adds (field, size) of each chunk that is not a list.
local function read_chunks(data, value, chunks)
  if not in_chunks(value) or string.find(chunks.roots, string.sub(value, 2, 17), 1, true) then return end
  local seen, lists, leaves = chunks.seen, {}, {}
  local function open(list, pos)
    local into = string.byte(list, 1) == 110 and lists or leaves -- 'n'
    if into == leaves and not (chunks.leaves or chunks.sizes) then return end
    local n, fields = #into, children(list, pos)
    for i = 1, #fields do
      if not seen[fields[i]] then
        seen[fields[i]], n = true, n + 1
        into[n] = fields[i]
      end
    end
  end
  local function add(fields)
    local found, flat, n, bytes = fetch(data, fields), chunks.flat, #chunks.flat, 0
    for i = 1, #fields do
      if found[i] then
        flat[n + 1], flat[n + 2] = fields[i], found[i]
        n, bytes = n + 2, bytes + 17 + #found[i]
      elseif not chunks.lenient then
        gone(fields[i])
      end
    end
    chunks.bytes = chunks.bytes + bytes
    return found
  end

  open(value, skip(value, 18, 2))
  while lists[1] do
    local fields, found = lists, add(lists)
    lists = {}
    for i = 1, #fields do
      if found[i] then open(found[i], 2) end
    end
  end
  if chunks.leaves then
    add(leaves)
    leaves = {}
  end
  for i = 1, chunks.sizes and #leaves or 0 do
    local size = redis.call('HSTRLEN', data, leaves[i])
    if size > 0 then
      chunks.sizes[#chunks.sizes + 1], chunks.sizes[#chunks.sizes + 2] = leaves[i], size
      chunks.bytes = chunks.bytes + 33
    elseif not chunks.lenient then
      gone(leaves[i])
    end
  end
end

-- Does the same as read_chunks for the pending writes in a record.
local function read_chunks_of_writes(data, record, chunks)
  for _, root in ipairs(roots_in(record)) do read_chunks(data, root, chunks) end
end
