-- Shared by the store's scripts (included): the reply of a write that found nothing to change.

-- Returns this reply on a primary. A replica may have found old data, so there it returns the error READONLY.
local function unwritten(reply)
  local refused = redis.pcall('HDEL', items, '') -- no item has this field
  return type(refused) == 'table' and refused.err and refused or reply
end
