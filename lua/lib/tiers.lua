-- Shared by the scripts (included): a thread in cold, of which hot may have only a part.

-- Returns what hot has of a thread: 2 for the whole thread (also if cold does not have it), 1 for the newest checkpoint
-- of a namespace, 0 if unknown.
-- home, whole, newest: values of @cold_backed, @complete and @has_latest.
local function extent_of(home, whole, newest)
  return (not home or whole) and 2 or newest and 1 or 0
end

-- Returns true if hot has all pending writes of a checkpoint that is being put.
-- Writes may come before their checkpoint, and cold may have some that hot has lost. These are older than the fill that
-- copied the thread to hot. So a checkpoint has no such writes if its writer knew that fill when it made the id.
-- `checkpoint` is its field. `learned` is the value of @complete or @has_latest; '1' if cold had nothing of the thread.
-- `fill` is the token of the fill that the writer knew when it made the id, or ''.
local function has_its_writes(data, checkpoint, learned, fill)
  return learned == '1' or learned and learned == fill or redis.call('HEXISTS', data, checkpoint) == 1
end

-- Returns true if hot knows that a thread that is not here is empty: nobody has written it since new_thread made its
-- name, or it was deleted in hot, but not yet in cold. Then cold's data is stale.
local function is_known_empty(dirty, lease)
  return redis.call('HEXISTS', lease, 'new') == 1 or redis.call('ZSCORE', dirty, 'd')
end
