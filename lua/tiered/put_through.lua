-- Stores a checkpoint that cold has, and ends its intent.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1..6]         same as put.lua, and so are the others except the last five: as in put_behind.lua whether the
--                    checkpoint keeps its parent, then the arguments of end_intent.lua
--
-- If the thread will be flushed once more, the checkpoint is recorded as dirty, too.
-- If this server may lack values or writes of the checkpoint, the script does not store it. It also forgets that the
-- newest checkpoint of the namespace is here, so the next reader fills it from cold. If others also write the thread,
-- or if an older form of the checkpoint is here, it drops the thread.
-- Returns the reply of put.lua, or a kept parent as put_behind.lua does. If chunks are missing or a parent is kept, the
-- intent stays. Or
--   REFUSED  -1  this server may lack a part of the checkpoint: it was not stored, and the intent has ended
-- Errors: DAMAGED, KEYCONFLICT, OTHERKEY, UNSUPPORTED.

--- @include lib/put
--- @include lib/tiers
--- @include lib/intents
--- @include lib/write_behind

local REFUSED = -1
local index, data, intents, lease, dirty, flush = unpack(KEYS)
local checkpoint, default, last = ARGV[1], ARGV[6], #ARGV - 4
local token, newest, needed, fill = ARGV[last + 1], ARGV[last + 2], ARGV[last + 3], ARGV[last + 4]

local ns = string.sub(checkpoint, 2, (string.find(checkpoint, '%z')))
newest = kept_since(data, intents, token, newest)
if newest == '' then
  local found = redis.call('HMGET', data, needed, '@complete', '@has_latest' .. ns)
  local is_known = found[1] and has_its_writes(data, checkpoint, found[2] or found[3], fill)
  local is_alone = redis.call('ZCARD', intents) == 1 and not is_due_again(dirty, flush)
  if not is_known and is_alone and redis.call('HEXISTS', data, checkpoint) == 0 then
    redis.call('HDEL', data, '@complete', '@has_latest' .. ns)
    end_intent(index, data, intents, lease, dirty, token, '', '', '')
    return REFUSED
  end
  needed = is_known and '' or '?' -- a field that never exists
end
local reply = put_checkpoint(index, data, ARGV, false, ARGV[last] == '1')
if stored_nothing(reply) then return reply end
mark_again(index, data, lease, dirty, flush, { checkpoint }, default)
end_intent(index, data, intents, lease, dirty, token, newest, needed, fill)
return reply
