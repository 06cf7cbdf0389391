-- Stores the pending writes of a task, and records that cold lacks them.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1..7]         same as put_writes.lua, and so are the others except the last three: the token of the last fill
--                    that the caller knows, or ''; if that fill found nothing in cold, @complete or @has_latest and the
--                    escaped namespace, else ''; the prefix of the members of the checkpoint's writes
--
-- Returns the reply of put_writes.lua, or
--   REFUSED  -1  the writes have to go to cold first, for example because a fill brought writes of the checkpoint
--                without task paths: nothing was done
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, OTHERKEY, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/framing
--- @include lib/put_writes
--- @include lib/write_behind

local REFUSED = -1
local index, data, intents, lease, dirty = unpack(KEYS)
local member, default, last = ARGV[1], ARGV[4], #ARGV - 3
local fill, gain, writes = ARGV[last + 1], ARGV[last + 2], ARGV[last + 3]

local ns = string.sub(member, 2, (string.find(member, '%z')))
local checkpoint = 'c' .. string.sub(writes, 2)
local field, value = standing(data, intents, lease, dirty, fill, gain, ns, checkpoint, false, '', ARGV[6])
if not field then -- writes may come before their checkpoint if it will be the newest
  local last_id = '(c' .. string.sub(ns, 1, -2) .. '\1'
  local above = redis.call('ZRANGEBYLEX', index, '(' .. checkpoint, last_id, 'LIMIT', 0, 1)
  if #above == 0 then
    field, value = standing(data, intents, lease, dirty, fill, gain, ns, '@has_latest' .. ns, true, '', ARGV[6])
  end
end
if not field or string.find(redis.call('HGET', data, '@no_task_path') or '', pack(writes), 1, true) then
  return REFUSED
end
local added = put_task(index, data, ARGV, last, true)
if type(added) == 'table' and (added.err or added[3]) then return added end
mark(index, data, lease, dirty, members_of(ARGV, last), default, field, value)
return added
