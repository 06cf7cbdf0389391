-- Removes a whole thread, or only counts what it holds.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] mode       'count'  only count
--                    'sound'  remove the thread unless it is damaged
--                    'any'    remove it, damaged or not
--
-- Returns {checkpoints, writes, values, bytes}, or nil if it removed a damaged thread.
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/ends_ownership
--- @include lib/thread

local index, data = KEYS[1], KEYS[2]
local mode = ARGV[1]
local meta, problem = open_thread(index, data)
if problem and mode == 'any' and string.find(problem.err, '^DAMAGED') then
  redis.call('UNLINK', index, data)
  end_ownership()
  return false
end
if problem then return problem end
if mode ~= 'count' then end_ownership() end
if not meta then return { 0, 0, 0, 0 } end
local checkpoints = redis.call('ZLEXCOUNT', index, '[c', '(d')
if mode ~= 'count' then redis.call('UNLINK', index, data) end
return { checkpoints, meta.writes, meta.blobs, meta.bytes }
