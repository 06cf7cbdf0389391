-- Shared by the store's scripts (included): documents, the hashes in which the server's own index finds vectors. An
-- item has a document if it has vectors and its partition has the field `@documents`. The field is the number of
-- dimensions, a space, and the maximum number of vectors per item. It is '0' while some documents may be missing.
-- docs/storage-format.md has the data.

-- Maximum number of vectors in a document.
local MAX_VECTORS = 1000

-- Returns the field `@documents`, or false if the items have no documents.
local function documents_of(state)
  return state.indexed > 0 and redis.call('HGET', items, '@documents')
end

-- Stores or replaces the document of an item with vectors. Returns the dimensions of the vectors as text, and their
-- number. If the vectors are encrypted, it stores no document and returns nothing.
local function write_document(document, under, vectors, ttl, deadline)
  redis.call('UNLINK', document)
  local _, head, dims = string.find(vectors, '^(%d+) 5:bytes')
  local width = 4 * tonumber(dims or '0')
  local count = width > 0 and (#vectors - head) / width or 0
  if count < 1 or count > MAX_VECTORS or count ~= math.floor(count) then return nil end
  local fields = { 'under', under }
  for i = 1, count do
    local vector = string.sub(vectors, head + 1 + (i - 1) * width, head + i * width)
    if string.find(vector, '[^%z\128]') then
      fields[#fields + 1], fields[#fields + 2] = 'v' .. string.format('%d', i), vector
    else
      fields[2] = under .. ',zero' -- without a direction its cosine would be NaN, and the server could not sort
    end
  end
  redis.call('HSET', document, unpack(fields))
  if ttl ~= '0' then redis.call('PEXPIREAT', document, string.format('%.0f', deadline)) end
  return dims, count
end

-- Returns the field `@documents` after one more document.
local function marked(mark, dims, count)
  local known, most = string.match(mark or '', '^(%d+) (%d+)$')
  if not dims or mark and known ~= dims then return '0' end
  return dims .. ' ' .. string.format('%d', math.max(tonumber(most or '0'), count))
end
