-- Shared by the scripts (included): a thread of which cold has all, and hot maybe only a part.

-- Whether the newest checkpoint of a namespace that is here is the newest there is: where only hot has the thread, or it was
-- brought here whole, or what is newest in that namespace was.
local function has_newest(data, ns)
  local found = redis.call('HMGET', data, '@home', '@whole', '@newest' .. ns)
  return not found[1] or found[2] or found[3]
end
