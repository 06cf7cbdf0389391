-- Shared by the scripts (included): a thread of which cold has all, and hot maybe only a part.

-- What hot has of a thread: 2, all there is (also where only hot has the thread); 1, what is newest in a namespace; 0, who knows.
-- home, whole, newest: the fields of the data that say so.
local function extent_of(home, whole, newest)
  return (not home or whole) and 2 or newest and 1 or 0
end

-- Whether the thread was deleted here and cold does not know yet, so that what cold has is not to be believed.
local function has_tombstone(dirty)
  return redis.call('ZSCORE', dirty, 'd')
end
