-- Stores copies of the items that a cold store returned after a miss, except items that a writer has written since the
-- miss, or is writing.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- KEYS[7] notes       hash        <prefix>:store:{<partition>}:notes
-- ARGV[1] token       token of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   deadline of its entry in milliseconds; '0' for none
-- ARGV[3] miss        as get_copies returned it
-- ARGV[4..]           five arguments for each item, each item once:
--                       its field
--                       created_at in microseconds
--                       the TTL of the copy in milliseconds, '0' for none
--                       updated_at in microseconds, as 14 hex digits
--                       the value: a frame of the type, then the bytes
-- Returns {the number of stored copies, as text}, or a code, alone or first in a list
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token
-- Errors: OTHERKEY, PARTITION, UNSUPPORTED.

local items, order, expiring, namespaces, vectors, retired, notes = unpack(KEYS)
local MORE, NOT_ANNOUNCED = 1, 2
local token, announced, miss = ARGV[1], ARGV[2], ARGV[3]
local FIRST, EACH = 4, 5

--- @include lib/copies

local full = no_room()
if full then return full end
local state, reply, micros, now = open_plain(MORE)
if reply then return reply end
local last = change_of_miss(miss, now)
if not last then return { '0' } end
local fields, copies = {}, {}
for i = FIRST, #ARGV, EACH do fields[#fields + 1] = ARGV[i] end
local about, records = redis.call('HMGET', notes, unpack(fields)), redis.call('HMGET', items, unpack(fields))
for i = 1, #fields do
  local change, writers = read_note(about[i] or '', '', now)
  if change <= last and writers == '' and not records[i] then
    local at = FIRST + (i - 1) * EACH
    copies[#copies + 1] = { unpack(ARGV, at, at + EACH - 1) }
  end
end
if not copies[1] then return { '0' } end
local _, refusal = store_copies(state, copies, token, announced, micros, now)
return refusal or { text_of(#copies) }
