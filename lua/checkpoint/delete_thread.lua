-- Removes a whole thread and says what it held.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] mode       'count' alone; remove what is 'sound', 'any' thread, a damaged one too
--
-- Returns {checkpoints, writes, values, bytes}, nil where it removed a damaged thread.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: confirmed, owned.
-- Ends ownership if: ARGV[1] ~= 'count'.

--- @include lib/thread

local index, data = KEYS[1], KEYS[2]
local mode = ARGV[1]

local meta, problem = open_thread(index, data)
if problem and mode == 'any' and string.find(problem.err, '^DAMAGED') then
  redis.call('UNLINK', index, data)
  return false
end
if problem then return problem end
if not meta then return { 0, 0, 0, 0 } end
local checkpoints = redis.call('ZLEXCOUNT', index, '[c', '(d')
if mode ~= 'count' then redis.call('UNLINK', index, data) end
return { checkpoints, meta.writes, meta.blobs, meta.bytes }
