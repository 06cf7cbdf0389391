-- Shared by the scripts (included): the newest checkpoint of a namespace.

-- Returns the id of the newest checkpoint of a namespace, or nil.
local function newest_id(index, ns)
  local upper = '(c' .. string.sub(ns, 1, -2) .. '\1'
  local member = redis.call('ZREVRANGEBYLEX', index, upper, '[c' .. ns, 'LIMIT', 0, 1)[1]
  return member and string.sub(member, #ns + 2)
end
