-- Shared by the scripts (included): which part of a thread hot has.

-- Returns the part of a thread that hot has: 2, all of it (also if only hot has the thread); 1, the newest checkpoint
-- of a namespace; 0, unknown.
-- home, whole, newest: the values of @cold_backed, @complete, and @has_latest of the namespace.
local function extent_of(home, whole, newest)
  return (not home or whole) and 2 or newest and 1 or 0
end

-- True if this server has all pending writes of a checkpoint that is put now.
-- Writes may come before their checkpoint, and cold may have some that this server lost. These were sent before the
-- fill that set `learned`. So they cannot belong to a checkpoint whose id was made when its writer knew of that fill.
-- checkpoint: its field. learned: the value of @complete or @has_latest, '1' if cold had nothing of the thread.
-- fill: the token of the fill that the writer knew when it made the id, or ''.
local function has_its_writes(data, checkpoint, learned, fill)
  return learned == '1' or learned and learned == fill or redis.call('HEXISTS', data, checkpoint) == 1
end

-- True if the thread was deleted here and not yet in cold. Until then cold's data of it does not count.
local function has_tombstone(dirty)
  return redis.call('ZSCORE', dirty, 'd')
end
