-- Reads one checkpoint: the newest of a namespace, or the one with an id.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents, or nothing where this server is not the hot one of two
-- KEYS[4] dirty      sorted set  <prefix>:{<thread>}:dirty, or nothing
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         checkpoint id, escaped, or '' for the newest
-- ARGV[3] refresh    '1' to move the deadline as a write does
-- ARGV[4] default    the saver's TTL in milliseconds, or ''
-- ARGV[5] roots      digests of 16 bytes, in the roots of values all of whose chunks the caller has
-- ARGV[6] told       fields of chunks, of 17 bytes, that the caller has, with all that is below them
-- ARGV[7] known      the field of the checkpoint that the caller expects, or ''
-- ARGV[8..]          the fields of its values, in the order of the entries
--
-- Returns {id, namespace, header, values, writes, chunks}, with values in the order of the entries, and chunks a flat list of (field, bytes) of what
-- the names, the values and the writes are made of. Behind these stands 1 where the checkpoint is the expected one, the values are those of the fields given,
-- and nobody looked whether the header says the same. nil where there is no such checkpoint here; or, where there are tiers,
--   INTENTS  1  there are intents about the thread
--   NOWHERE  2  cold has no such checkpoint either
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/tiers
--- @include lib/common_case

local INTENTS, NOWHERE = 1, 2
local ALL = 2 -- the extent of a thread that is all here
local index, data, intents, dirty = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ns, id, refresh, default, roots, told, known = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

if intents and redis.call('EXISTS', intents) == 1 then return INTENTS end
local meta, problem, found
if intents then
  meta, problem, found = open_thread(index, data, '@cold_backed', '@complete', '@has_latest' .. ns)
else
  meta, problem = open_thread(index, data)
end
if problem then return problem end
if not meta then return dirty and has_tombstone(dirty) and NOWHERE or false end
local has = found and extent_of(found[4], found[5], found[6])
if id == '' and has == 0 then return false end
if id == '' then id = newest_id(index, ns) end
if not id then return has == ALL and NOWHERE or false end
local answer, unknown
if known == 'c' .. ns .. id then answer, unknown = read_known(index, data, ns, id, roots, ARGV, 7) end
if answer and not unknown[1] and (meta.format < HAS_CHUNKED_WRITES or not answer[5][1]) then
  if refresh == '1' then touch(index, data, meta, default, '') end
  return answer
end

--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint

local chunks = new_chunks(true, roots)
for at = 1, #told, 17 do chunks.seen[string.sub(told, at, at + 16)] = true end
if answer then
  for i = 1, #unknown do
    problem = read_chunks(data, unknown[i], chunks)
    if problem then return problem end
  end
  for i = 2, #answer[5], 2 do
    problem = read_chunks_of_writes(data, answer[5][i], chunks)
    if problem then return problem end
  end
else
  answer, problem = read_checkpoint(index, data, ns, id, chunks)
  if problem then return problem end
end
if not answer then return has == ALL and NOWHERE or false end
answer[6] = chunks.flat
if refresh == '1' then touch(index, data, meta, default, '') end
return answer
