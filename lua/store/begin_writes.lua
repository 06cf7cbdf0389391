-- Begins a write to a cold store: removes the copies of its items, and makes fill_copies refuse them until the write
-- ends. Sending it twice changes nothing.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- KEYS[8] noted       sorted set  <prefix>:store:{<partition>}:noted
-- ARGV[1] writer      16 hex digits that name this write
-- ARGV[2..]           the fields of the items, each once
-- Returns {change, left} for end_writes
--   change  the number of this change
--   left    the number of copies that are left if the partition had copies of all items, else ''
-- Or returns a code
--   MORE  1  more has expired than one call removes: call again
-- Errors: KEYCONFLICT, OTHERKEY, PARTITION, UNSUPPORTED.
-- Rules: confirmed.

local items, order, expiring, namespaces, vectors, retired, notes, noted = unpack(KEYS)
local MORE = 1
local writer = ARGV[1]

--- @include lib/copies

local state, reply, micros, now = open_plain(MORE)
if reply then return reply end
local count = state and state.count or 0
local fields, writers = { unpack(ARGV, 2) }, {}
local complete = redis.call('HGET', notes, '@complete')
local is_complete = complete and tonumber(complete) == count
if state then
  state, reply = remove_copies(state, fields, now)
  if reply then return reply end
end
redis.call('HDEL', notes, '@complete')
local left = is_complete and text_of(state and state.count or 0) or ''
local about = redis.call('HMGET', notes, unpack(fields))
for i = 1, #fields do
  local _, others = read_note(about[i] or '', writer, now)
  writers[i] = others .. ' ' .. writer .. ' ' .. text_of(now + INTENT)
end
return { text_of(note_changes(fields, writers, micros, now)), left }
