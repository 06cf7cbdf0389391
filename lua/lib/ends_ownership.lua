-- Included after lib/may_write by the scripts that delete or replace a thread. Before the key `owner` they take the key
-- `waiters`.
local waiters
if owner then waiters, KEYS[#KEYS] = KEYS[#KEYS], nil end

-- Ends the ownership, unless the writer is the owner. The owner's next write is refused.
local function end_ownership()
  if string.sub(writer, 1, 1) == ' ' then redis.call('UNLINK', owner, waiters) end
end
