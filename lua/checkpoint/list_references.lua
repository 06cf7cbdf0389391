-- Reads a page of the links of a thread's checkpoints, in the order of their names: what prune, copy and delete_for_runs
-- plan with.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] lower      lower bound of the range, as ZRANGEBYLEX takes it
-- ARGV[2] limit      how many checkpoints at the most
--
-- Returns {revision, format, chunks, member, links, member, links...}: format is the thread's, an int; links is the header up to and with its links, chunks a flat
-- list of (field, bytes) of the names in them. The revision changes with every put and removal. nil where there is no such
-- thread.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local lower, limit = ARGV[1], tonumber(ARGV[2])

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return false end

local members = redis.call('ZRANGEBYLEX', index, lower, '(d', 'LIMIT', 0, limit)
local chunks = new_chunks(false)
local page = { meta.rev, meta.format, chunks.flat }
for i = 1, #members do
  local header = redis.call('HGET', data, members[i])
  if not header then return redis.error_reply('DAMAGED the header of a checkpoint is gone from ' .. data) end
  reading = 'the header of a checkpoint'
  local of = links(header)
  problem = select(2, names_in(data, of.names, chunks))
  if problem then return problem end
  page[#page + 1] = members[i]
  page[#page + 1] = string.sub(header, 1, of.behind - 1)
end
return page
