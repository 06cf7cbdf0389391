-- Reads one checkpoint: the newest of a namespace, or the one with an id.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents, only over two tiers
-- KEYS[4] dirty      sorted set  <prefix>:{<thread>}:dirty, only over two tiers
-- KEYS[5] lease      hash        <prefix>:{<thread>}:lease, only over two tiers
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         checkpoint id, escaped, or '' for the newest
-- ARGV[3] refresh    '1' to move the deadline as a write does
-- ARGV[4] default    the saver's TTL in milliseconds, or ''
-- ARGV[5] roots      digests of 16 bytes, from the roots of values whose chunks the caller has
-- ARGV[6] told       fields of 17 bytes, of chunks that the caller has, with all chunks below them
-- ARGV[7] tag        the thread's tag as the caller knows it, or ''
-- ARGV[8] known      the field of the newest checkpoint that the caller knows, or ''
--
-- Returns {id, namespace, header, values, writes, chunks, tag, fill}, or nil if there is no such checkpoint here
--   values   in the order of the entries
--   chunks   the chunks of names, values and writes, as a flat list of (field, bytes)
--   tag      the thread's tag, or ''
--   fill     the token of the fill that stored the newest checkpoint in hot, or ''
-- If tag and checkpoint are those of the caller, header is '' and there are no values.
-- Over two tiers it may also return
--   INTENTS  1  the thread has write intents
-- or {NOWHERE}, or {NOWHERE, fill}:
--   NOWHERE  2  cold does not have the checkpoint either
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/newest
--- @include lib/tiers

local INTENTS, NOWHERE = 1, 2
local ALL = 2 -- the extent of a complete thread
local index, data, intents, dirty, lease = unpack(KEYS)
local ns, id, refresh, default = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local roots, told, tag, known = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

-- Returns the pending writes of a checkpoint, a flat list of (task and kind, record). Returns nil if some are in
-- chunks, or if there are many.
local function plain_writes(index, data, ns, id)
  local from, writes = 'w' .. ns .. id, {}
  local members = redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  if #members > 100 then return nil end
  local records = members[1] and redis.call('HMGET', data, unpack(members))
  for i = 1, #members do
    if not records[i] or string.find(records[i], '\255chunks', 1, true) then return nil end
    writes[2 * i - 1], writes[2 * i] = string.sub(members[i], #from + 1), records[i]
  end
  return writes
end

if intents and redis.call('EXISTS', intents) == 1 then return INTENTS end
local meta, problem, found
if intents then
  meta, problem, found = open_thread(index, data, '@cold_backed', '@complete', '@has_latest' .. ns)
else
  meta, problem = open_thread(index, data)
end
if problem then return problem end
if not meta then return dirty and is_known_empty(dirty, lease) and { NOWHERE } or false end
local has = found and extent_of(found[4], found[5], found[6])
local fill = found and (found[5] or found[6]) or nil
if fill == '1' then fill = nil end
if id == '' and has == 0 then return false end
if id == '' then id = newest_id(index, ns) end
if not id then return has and { NOWHERE, fill } or false end
local is_known = tag ~= '' and tag == meta.tag and known == 'c' .. ns .. id
local writes = is_known and plain_writes(index, data, ns, id)
if writes then
  if refresh == '1' then touch(index, data, meta, default, '') end
  return { id, ns, '', {}, writes, {}, tag, fill or '' }
end

--- @include lib/checkpoint

local answer
local chunks = new_chunks(true, roots)
for at = 1, #told, 17 do chunks.seen[string.sub(told, at, at + 16)] = true end
if is_known then
  writes = pending_writes(index, data, ns, id)
  for i = 2, #writes, 2 do read_chunks_of_writes(data, writes[i], chunks) end
  answer = { id, ns, '', {}, writes }
else
  answer = read_checkpoint(index, data, ns, id, chunks)
end
if not answer then return has == ALL and { NOWHERE, fill } or false end
answer[6], answer[7], answer[8] = chunks.flat, meta.tag, fill or ''
if refresh == '1' then touch(index, data, meta, default, '') end
return answer
