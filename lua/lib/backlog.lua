-- Shared by the scripts (included): the count of records that cold lacks.

-- Converts a field of the count to a number: 0 if another program wrote something else.
local function number(text)
  local value = tonumber(text or '')
  return value and math.abs(value) < 1e15 and value or 0
end
