-- Ends a write that the cold store has done. Stores copies of the items as cold has them now, except items of which
-- another writer has begun or ended a write since this write began.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- KEYS[8] noted       sorted set  <prefix>:store:{<partition>}:noted
-- ARGV[1] token       token of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   deadline of its entry in milliseconds; '0' for none
-- ARGV[3] writer      as in begin_writes
-- ARGV[4] change      as begin_writes returned it
-- ARGV[5] left        as begin_writes returned it if these copies make the partition complete again, else ''
-- ARGV[6..]           five for each item, as in fill_copies; the value is '' if there is nothing to store
-- Returns {the number of stored copies, as text}, or a code, alone or first in a list
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) the write has not ended: announce the partition for this TTL, with a greater token
--   EMPTIED        4  (token) done, and the partition has no items: give this token back to the directory
-- Errors: KEYCONFLICT, OTHERKEY, PARTITION, UNSUPPORTED.

local items, order, expiring, namespaces, vectors, retired, notes, noted = unpack(KEYS)
local MORE, NOT_ANNOUNCED, EMPTIED = 1, 2, 4
local token, announced, writer, change = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local FIRST, EACH = 6, 5

--- @include lib/copies

local fields, writers, copies, full = {}, {}, {}, false
for i = FIRST, #ARGV, EACH do
  fields[#fields + 1] = ARGV[i]
  full = full or ARGV[i + 4] ~= '' and no_room()
end
if full then return full end
local state, reply, micros, now = open_plain(MORE)
if reply then return reply end
local about, all_sound = redis.call('HMGET', notes, unpack(fields)), true
for i = 1, #fields do
  local at = FIRST + (i - 1) * EACH
  local begun, others, own = read_note(about[i] or '', writer, now)
  writers[i] = others
  if not own or begun ~= change or others ~= '' then
    all_sound = false
  elseif ARGV[at + 4] ~= '' then
    copies[#copies + 1] = { unpack(ARGV, at, at + EACH - 1) }
  end
end
if state then -- if this write took longer than an intent lasts, readers may have filled copies
  state, reply = remove_copies(state, fields, now)
  if reply then return reply end
end
local is_complete = text_of(state and state.count or 0) == ARGV[5]
if copies[1] then
  state, reply = store_copies(state, copies, token, announced, micros, now)
  if reply then return reply end
end
local is_alone = redis.call('HGET', notes, '@last') == ARGV[4]
note_changes(fields, writers, micros, now)
redis.call('HDEL', notes, '@complete') -- it exists only if the note of this write was lost, or has expired
if is_complete and all_sound and is_alone then redis.call('HSET', notes, '@complete', state and state.count or 0) end
local kept, _, last = string.match(redis.call('HGET', notes, '@kept') or '', '^(%d+) (%d+) (%d+) ')
if not state and kept then
  redis.call('HDEL', notes, '@kept')
  local last_token = string.match(redis.call('GET', retired) or '0 0', '^(%d+) ')
  if tonumber(kept) > tonumber(last_token or '0') then
    redis.call('SET', retired, kept .. ' ' .. last, 'PX', RETIRED)
    return { EMPTIED, kept }
  end
end
return { text_of(#copies) }
