-- Reads some checkpoints of a thread.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] budget     bytes after which the reply ends
-- ARGV[2..]          pairs: namespace, checkpoint id, both escaped
--
-- Returns {chunks, checkpoint...} in the requested order
--   chunks      a flat list of (field, bytes) of all chunks, each once
--   checkpoint  {id, namespace, header, values, writes}, or nil if it is gone
-- If the reply has fewer checkpoints than pairs, the caller asks again for the rest.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local budget = tonumber(ARGV[1])
local meta, problem = open_thread(index, data)
if problem then return problem end

local chunks, bytes = new_chunks(true), 0
local list = { chunks.flat }
for i = 2, #ARGV, 2 do
  local answer = meta and read_checkpoint(index, data, ARGV[i], ARGV[i + 1], chunks)
  list[#list + 1] = answer or false
  bytes = bytes + (answer and answer.size or 0)
  if bytes + chunks.bytes >= budget then break end
end
return list
