-- Reads fields of a thread as they are stored, as many as fit. One step of copy_thread.
--
-- KEYS[1] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] budget     stop behind the value with which the answer has this many bytes
-- ARGV[2..]          fields
--
-- Returns the values in the order asked for, nil where a field is gone; a list shorter than what was asked for: ask
-- again for the rest.
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
