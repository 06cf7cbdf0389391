-- Shared by the store's scripts (included): ends without a write.

-- Ends a script that was to write, but wrote nothing, with this reply. A replica refuses, because its data may be old.
local function unwritten(reply)
  redis.call('HDEL', items, '') -- no item has this field
  return reply
end
