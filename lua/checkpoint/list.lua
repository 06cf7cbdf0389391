-- Reads a page of a thread's checkpoints, newest first, of one namespace or of all.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] upper      upper bound of the range, as ZREVRANGEBYLEX takes it: c... for one namespace, i... for all
-- ARGV[2] lower      lower bound of the range
-- ARGV[3] limit      maximum number of checkpoints
-- ARGV[4] budget     bytes after which the page ends
-- ARGV[5] what       'whole' checkpoints, only their 'headers', or only their 'names'
-- ARGV[6] refresh    '1' to move the deadline as a write does
-- ARGV[7] default    the saver's TTL in milliseconds, or ''
--
-- Returns {next, chunks, checkpoint...}
--   next        the upper bound of the next page, '' at the end
--   chunks      a flat list of (field, bytes) of all chunks, each once
--   checkpoint  {id, namespace, header, values, writes}, or the first three or two of these
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local upper, lower, limit, budget = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local what, refresh, default = ARGV[5], ARGV[6], ARGV[7]
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return { '', {} } end

local checkpoints = newest_first(index, upper, lower, limit)
local chunks, bytes = new_chunks(true), 0
local page = { '', chunks.flat }
for i = 1, #checkpoints do
  local id, ns, following = unpack(checkpoints[i])
  local answer = { id, ns, size = 0 }
  if what == 'whole' then
    answer = read_checkpoint(index, data, ns, id, chunks)
  elseif what == 'headers' then
    answer[3] = read_header(index, data, ns, id)
    answer.size = #(answer[3] or '')
  end
  page[#page + 1] = answer
  bytes = bytes + answer.size
  if bytes + chunks.bytes >= budget or i == limit then
    page[1] = following
    break
  end
end
if refresh == '1' then touch(index, data, meta, default, '') end
return page
