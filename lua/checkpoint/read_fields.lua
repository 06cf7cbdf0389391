-- Reads fields of a thread as stored: one step of copy_thread.
--
-- KEYS[1] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] budget     bytes after which the reply ends
-- ARGV[2..]          fields
--
-- Returns the values in the requested order, nil for a missing field. If the reply has fewer values than there are
-- fields, the caller asks again for the rest.
-- Errors: none of ours.
-- Rules: reads.

local data = KEYS[1]
local budget = tonumber(ARGV[1])
local values, bytes = {}, 0
for i = 2, #ARGV do
  local value = redis.call('HGET', data, ARGV[i])
  values[i - 1] = value
  bytes = bytes + #(value or '')
  if bytes >= budget then break end
end
return values
