-- Shared by the store's scripts (included): ends without a write.

-- Ends a script that was to write, but wrote nothing, with this reply. A replica refuses, because its data may be old.
local function unwritten(reply)
  local refused = redis.pcall('HDEL', items, '') -- no item has this field
  return type(refused) == 'table' and refused.err and refused or reply
end
