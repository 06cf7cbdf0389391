-- Shared by the store's scripts (included): values that the caller knows, by the puts that stored them.

-- A record without its value, if its put is one of these (each between blanks).
local function without_known(record, puts)
  if puts == '' then return record end
  local head, made_by = string.match(record, '^(%d+ %d+ %d+ (%x+) )')
  return head and string.find(puts, ' ' .. made_by .. ' ', 1, true) and head or record
end
