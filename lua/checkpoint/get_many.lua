-- Reads the checkpoints with the given names, as many of them as fit.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] budget     stop behind the checkpoint with which the answer has this many bytes
-- ARGV[2..]          pairs: namespace, checkpoint id, both escaped
--
-- Returns {chunks, checkpoint...}, in the order asked for: as get answers them (all their chunks in one list, each once), nil
-- where one is gone. A list shorter than what was asked for: ask again for the rest.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local budget = tonumber(ARGV[1])

local meta, problem = open_thread(index, data)
if problem then return problem end

local chunks, bytes = new_chunks(true), 0
local list = { chunks.flat }
for i = 2, #ARGV, 2 do
  local answer, size = nil, 0
  if meta then
    answer, problem, size = read_checkpoint(index, data, ARGV[i], ARGV[i + 1], chunks)
    if problem then return problem end
  end
  list[#list + 1] = answer or false
  bytes = bytes + size
  if bytes + chunks.bytes >= budget then break end
end
return list
