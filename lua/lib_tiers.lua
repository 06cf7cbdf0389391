-- Shared by the scripts (included): a thread of which cold has all, and hot maybe only a part.

-- What hot has of a thread: 2, all there is (also where only hot has the thread); 1, what is newest in a namespace; 0, who knows.
local function extent(data, ns)
  local found = redis.call('HMGET', data, '@home', '@whole', '@newest' .. ns)
  return (not found[1] or found[2]) and 2 or found[3] and 1 or 0
end

-- Whether the thread was deleted here and cold does not know yet, so that what cold has is not to be believed.
local function is_buried(dirty)
  return redis.call('ZSCORE', dirty, 'd')
end
