-- Reads a page of the links of a thread's checkpoints, in the order of their members, for the plans of prune,
-- copy_thread and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] lower      lower bound of the range, as ZRANGEBYLEX takes it
-- ARGV[2] limit      maximum number of checkpoints
--
-- Returns {revision, format, bytes, strays, writes, chunks, member, links, member, links...}, or nil if there is no
-- such thread. revision, format and bytes are those of the thread
--   strays  the size of @gc_roots
--   writes  the first 500 members of pending writes, only on the first page
--   chunks  the names chunks, as a flat list of (field, bytes)
--   links   the header of a member, up to the end of its links
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local lower, limit = ARGV[1], tonumber(ARGV[2])
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return false end

local members = redis.call('ZRANGEBYLEX', index, lower, '(d', 'LIMIT', 0, limit)
local chunks = new_chunks(false)
local writes = lower == '[c' and redis.call('ZRANGEBYLEX', index, '[w', '(x', 'LIMIT', 0, 500) or {}
local page = { meta.rev, meta.format, meta.bytes, redis.call('HSTRLEN', data, '@gc_roots'), writes, chunks.flat }
local found = fetch(data, members)
for i = 1, #members do
  local header = found[i] or stop('DAMAGED the header of a checkpoint is gone')
  reading = 'the header of a checkpoint'
  local of = links(header)
  names_in(data, of.names, chunks)
  page[#page + 1], page[#page + 2] = members[i], string.sub(header, 1, of.behind - 1)
end
return page
