-- Begins a write intent: a writer is going to write a thread to cold. Until the intent ends, readers read cold.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] token      the writer's own
-- ARGV[2] default    the saver's TTL in milliseconds, or ''
-- ARGV[3] writes     prefix of the members of a checkpoint's pending writes, or ''
-- ARGV[4] fill_token token of the last fill that the caller knows, or ''
-- ARGV[5] record     16 bytes that name the written record; sixteen * for the whole thread
-- ARGV[6] need       'all' if cold needs all coalesced checkpoints, 'nothing' if the writer deletes the thread, else ''
-- ARGV[7] gone       milliseconds after which a writer is gone
--
-- An intent is 15 digits of milliseconds, '-' ('!' if it is conflicted, '+' if another writer has stored something here
-- since it began), the record, and the token. Two intents about one record conflict, because their writes may reach
-- cold and this server in different orders.
-- Returns {code, pathless, still, records}
--   pathless  1 if those writes came from a fill, else 0
--   still     2 if nobody has written the thread since new_thread made its name, 1 if the thread has not changed since
--             that fill, else 0
--   records   number of records that the script added to `dirty`
-- The code says what cold has of the thread:
--   ABSENT     0  unknown: the thread is not here
--   COMPLETE   1  all values that are here
--   PARTIAL    2  maybe not all values: checkpoints were coalesced, or another writer changes the whole thread
--   BEHIND     3  not the last writes, which must be flushed first. No intent was made, but for five seconds nobody
--                 can write the thread behind
--   UNNOTED    4  nothing: the thread is older than the tiers, or its records are gone. The script has recorded all
--                 its data. As with BEHIND, no intent was made, and nobody can write the thread behind for a while
--   WAIT       5  not the coalesced checkpoints, which cannot be flushed while others write. Nothing was done
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, STALEPARENT, UNSUPPORTED.
-- Rules: owned.

--- @include lib/may_write
--- @include lib/ends_ownership
--- @include lib/thread
--- @include lib/framing
--- @include lib/intents
--- @include lib/again

local ABSENT, COMPLETE, PARTIAL, BEHIND, UNNOTED, WAIT = 0, 1, 2, 3, 4, 5
local BARRIER, WITH_WHOLE = 5000, '!!' -- milliseconds; a state
local index, data, intents, lease, dirty, flush = unpack(KEYS)
local token, default, writes, fill_token, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local need, gone = ARGV[6], tonumber(ARGV[7])

-- Makes other writers wait, so that the flush can make the thread clean.
local function first(code, records)
  redis.call('HDEL', lease, 'new') -- the thread may have begun without the tiers
  redis.call('HSET', lease, 'barrier', '1')
  redis.call('PEXPIRE', lease, BARRIER)
  return { code, 0, 0, records }
end

-- Drops an earlier intent of this token, and marks intents of others about the same record as conflicted. Returns the
-- state of the new intent: '!' if it conflicts, WITH_WHOLE if with a change of the whole thread, else '-'.
local function conflict_others(others)
  local state = '-'
  for _, other in ipairs(others) do
    local about = string.sub(other, 17, 32)
    if string.sub(other, 33) == token then
      redis.call('ZREM', intents, other)
    elseif about == record or about == WHOLE or record == WHOLE then
      redis.call('ZREM', intents, other)
      redis.call('ZADD', intents, 0, string.sub(other, 1, 15) .. '!' .. string.sub(other, 17))
      if state ~= WITH_WHOLE then state = about == WHOLE and WITH_WHOLE or '!' end
    end
  end
  return state
end

-- True if another writer is writing the thread to cold. A repeated request ignores its own intent.
local function is_being_written(others, now)
  for _, other in ipairs(others) do
    local age = now - (tonumber(string.sub(other, 1, 15)) or 0)
    if string.sub(other, 33) ~= token and age >= 0 and age < gone then return true end
  end
  return false
end

-- Makes the key of the intents expire later than the thread.
local function set_deadline()
  local left, kept = redis.call('PTTL', index), redis.call('PTTL', intents)
  if default == '' or left == -1 then
    redis.call('PERSIST', intents)
  else
    redis.call('PEXPIRE', intents, string.format('%.0f', math.max(left, kept, tonumber(default)) + INTENTS_KEPT))
  end
end

local others = redis.call('ZRANGEBYLEX', intents, '-', '+')
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if checks_parent and is_being_written(others, now) then return { WAIT, 0, 0, 0 } end
if redis.call('EXISTS', dirty) == 1 then return first(BEHIND, 0) end
local meta, problem, found = open_thread(index, data, '@cold_backed', '@no_task_path', '@cold_gaps')
if problem then return problem end
if meta and #others == 0 and need ~= 'nothing' then
  local is_only_here = not found[4] or meta.dirty
  if is_only_here or need == 'all' and found[6] == '1' then
    note_all(index, data, dirty, flush, meta)
    if found[6] then redis.call('HSET', data, '@cold_gaps', '2') end -- cold will get the coalesced checkpoints
    return first(is_only_here and UNNOTED or BEHIND, redis.call('ZCARD', dirty))
  end
elseif meta and need == 'all' and found[6] == '1' and is_being_written(others, now) then
  return { WAIT, 0, 0, 0 } -- if all other writers are gone, their intents stay, so readers read cold
end
local state, has = conflict_others(others), found[6] and PARTIAL or COMPLETE
if state == WITH_WHOLE then state, has = '!', PARTIAL end
local leased = redis.call('HMGET', lease, 'new', 'token')
local still = leased[1] and not meta and 2 or fill_token ~= '' and leased[2] == fill_token and 1 or 0
redis.call('UNLINK', lease)
if redis.call('HEXISTS', flush, 'deleted') == 1 then
  redis.call('HSET', flush, 'deleted', '2') -- written anew, maybe only in cold: a fenced flusher must not delete it
end
local stamp = string.format('%015.0f', now)
redis.call('ZADD', intents, 0, stamp .. state .. record .. token)
set_deadline()
if need == 'nothing' then end_ownership() end
local is_pathless = writes ~= '' and string.find(found[5] or '', pack(writes), 1, true)
return { meta and has or ABSENT, is_pathless and 1 or 0, still, 0 }
