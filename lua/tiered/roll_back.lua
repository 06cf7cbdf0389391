-- Removes the checkpoints of a run with their writes, and records that cold must remove them.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] revision   the revision that the caller saw, or '' if the thread was not here
-- ARGV[2] asked      '1' if the caller asked cold after that
-- ARGV[3] n          number of checkpoints that cold returned
-- ARGV[4..]          their members of the index; then the names to remove here, as for remove.lua
--
-- A note is the member of the index with r instead of c. It names the id and not the run, so a late deletion in cold
-- removes nothing that was written later.
-- Returns {checkpoints, writes, values, bytes, revision} as remove.lua does, and the number of records that the script
-- added to `dirty`. The first four count removals here. Or
--   CHANGED  0  the thread is not at that revision: nothing was done
--   UNKNOWN  1  the thread is not complete here, so the caller has to ask cold: nothing was done
--   WRITING  2  a writer has an intent: nothing was done
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/remove
--- @include lib/tiers
--- @include lib/write_behind
--- @include lib/again

local index, data, intents, lease, dirty, flush = unpack(KEYS)
local CHANGED, UNKNOWN, WRITING = 0, 1, 2
local ALL = 2 -- the extent of a complete thread
local MAX_REMEMBERED = 100000 -- bytes of earlier notes kept in case a flusher turns out to be fenced
local revision, asked, n = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('EXISTS', intents) == 1 then return WRITING end
local meta, problem, found = open_thread(index, data, '@cold_backed', '@complete', '@cold_gaps')
if problem then return problem end
if (meta and meta.rev or '') ~= revision then return CHANGED end
if not meta and is_known_empty(dirty, lease) then return { 0, 0, 0, 0, '', 0 } end
local is_whole = meta and extent_of(found[4], found[5]) == ALL
if not is_whole and asked ~= '1' then return UNKNOWN end

local answer, doomed = { 0, 0, 0, 0, '' }, {}
if #ARGV > 3 + n then
  answer, doomed = remove_fields(index, data, meta, ARGV, 4 + n, { keeps_empty = is_whole })
end
answer[6] = 0
redis.call('UNLINK', lease) -- a full server accepts this write, and then the others
for from = 1, #doomed, BATCH do redis.call('ZREM', dirty, unpack(doomed, from, math.min(from + BATCH - 1, #doomed))) end

local notes, listed, fields = {}, {}, {}
local function note_checkpoint(member)
  if string.sub(member, 1, 1) ~= 'c' or listed[member] then return end
  local ns = string.sub(member, 2, (string.find(member, '%z')))
  listed[member] = true
  notes[#notes + 1] = 'r' .. string.sub(member, 2)
  fields['@flushed_head' .. ns] = true
  if not is_whole then fields['@has_latest' .. ns] = true end -- the newest one is unknown now
end
for i = 4, 3 + n do note_checkpoint(ARGV[i]) end
for i = 1, #doomed do note_checkpoint(doomed[i]) end
for field in pairs(fields) do redis.call('HDEL', data, field) end
if not notes[1] then return answer end
local left = redis.call('ZCARD', dirty)
note(dirty, notes)

local clock, packed = redis.call('TIME'), {}
for i = 1, #notes do packed[i] = pack(notes[i]) end
local before = string.sub(redis.call('HGET', flush, 'removed') or '', 16)
if #before > MAX_REMEMBERED then before = '' end
redis.call('HSET', flush, 'removed', string.format('%015.0f', clock[1] * 1000) .. before .. table.concat(packed))
if found[6] == '1' and redis.call('EXISTS', data) == 1 then -- a coalesced checkpoint may be the newest now
  note_all(index, data, dirty, flush, meta)
  redis.call('HSET', data, '@cold_gaps', '2') -- cold will get it
end
answer[6] = redis.call('ZCARD', dirty) - left
return answer
