-- Reads the roots and lists of chunks of values, for the plans of prune, delete_for_runs and copy_thread.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] budget     bytes after which the reply ends
-- ARGV[2..]          fields of values, of records of pending writes, or @gc_roots
--
-- Returns {chunks, root...}
--   chunks  all lists of chunks below the roots, as a flat list of (field, bytes)
--   root    for each field: the root of a value, the frames of a record's roots, the content of @gc_roots, or ''
-- If the reply has fewer roots than there are fields, the caller asks again for the rest.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/chunks

local index, data = KEYS[1], KEYS[2]
local budget = tonumber(ARGV[1])
local _, problem = open_thread(index, data)
if problem then return problem end

local chunks, bytes = new_chunks(false), 0
local answer = { chunks.flat }
for i = 2, #ARGV do
  local value = ''
  if ARGV[i] == '@gc_roots' then
    value = redis.call('HGET', data, '@gc_roots') or ''
    chunks.lenient = true -- a removal that died has removed some of them
    for _, root in ipairs(unpack_frames(value)) do read_chunks(data, root, chunks) end
    chunks.lenient = false
  elseif string.byte(ARGV[i], 1) == 119 then -- 'w'
    for _, root in ipairs(roots_in(redis.call('HGET', data, ARGV[i]) or '')) do
      read_chunks(data, root, chunks)
      value = value .. pack(root)
    end
  elseif redis.call('HSTRLEN', data, ARGV[i]) <= MAX_ROOT then
    value = redis.call('HGET', data, ARGV[i]) or ''
    if not in_chunks(value) then value = '' end
    read_chunks(data, value, chunks)
  end
  answer[#answer + 1] = value
  bytes = bytes + #value
  if bytes + chunks.bytes >= budget then break end
end
return answer
