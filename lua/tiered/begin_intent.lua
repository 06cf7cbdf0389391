-- Notes that a writer writes a thread to cold. Until it is done, readers do not believe what is here.
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
-- ARGV[4] fill_token of the fill lease that the caller was given when there was nothing, or ''
-- ARGV[5] record     16 bytes that name what is written; sixteen * for all of the thread
-- ARGV[6] need       'all' if cold must have all that was coalesced; 'nothing' if the thread is deleted next; else ''
-- ARGV[7] gone       milliseconds after which a writer is gone
--
-- An intent is 15 digits of milliseconds, '-' ('!' if it is conflicted), the record, and the token. Two intents about
-- one record conflict, as their writes may reach cold and this server in different orders.
-- Returns {code, 1 if those writes were brought back else 0, 1 if nothing happened since that fill lease else 0}. The
-- code says what cold has of the thread:
--   ABSENT     0  unknown: the thread is not here
--   COMPLETE   1  all values that are here
--   PARTIAL    2  not what was coalesced; or another writer changes all of the thread there, or may have
--   BEHIND     3  not what was written last, and it has to get that first. There is no intent, but for some seconds the
--                 thread is not written behind
--   UNNOTED    4  nothing: the thread is from before there were tiers, or its notes are gone. All is noted now; else as
--                 BEHIND
--   WAIT       5  not what was coalesced, and it cannot get that while others write the thread: nothing was done
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: owned.

--- @include lib/may_write
--- @include lib/ends_ownership
--- @include lib/thread
--- @include lib/framing
--- @include lib/intents
--- @include lib/again

local ABSENT, COMPLETE, PARTIAL, BEHIND, UNNOTED, WAIT = 0, 1, 2, 3, 4, 5
local BARRIER, ALL_CHANGES = 5000, 'all' -- milliseconds; a state
local index, data, intents, lease, dirty, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, default, writes, fill_token, record = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local need, gone = ARGV[6], tonumber(ARGV[7])

-- Who writes the thread meanwhile has to wait for this writer, else this might last for ever.
local function first(code)
  redis.call('HSET', lease, 'barrier', '1')
  redis.call('PEXPIRE', lease, BARRIER)
  return { code, 0, 0 }
end

-- Drops an earlier intent of this token, and conflicts with those of others about the same record. Returns the state of
-- the new one: '-'; '!' if it is conflicted, too; ALL_CHANGES if it conflicts with a change of all of the thread.
local function conflict_others(others)
  local all, state = string.rep('*', 16), '-'
  for _, other in ipairs(others) do
    local about = string.sub(other, 17, 32)
    if string.sub(other, 33) == token then
      redis.call('ZREM', intents, other)
    elseif about == record or about == all or record == all then
      redis.call('ZREM', intents, other)
      redis.call('ZADD', intents, 0, string.sub(other, 1, 15) .. '!' .. string.sub(other, 17))
      if state ~= ALL_CHANGES then state = about == all and ALL_CHANGES or '!' end
    end
  end
  return state
end

-- True if another writer is writing the thread to cold. (A request that is sent again finds its own intent.)
local function is_being_written(others, now)
  for _, other in ipairs(others) do
    local age = now - (tonumber(string.sub(other, 1, 15)) or 0)
    if string.sub(other, 33) ~= token and age >= 0 and age < gone then return true end
  end
  return false
end

-- Keeps the intents longer than the thread would be.
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
if checks_parent and is_being_written(others, now) then return { WAIT, 0, 0 } end
if redis.call('EXISTS', dirty) == 1 then return first(BEHIND) end
local meta, problem, found = open_thread(index, data, '@cold_backed', '@no_task_path', '@cold_gaps')
if problem then return problem end
if meta and #others == 0 and need ~= 'nothing' then
  local is_only_here = not found[4] or meta.dirty
  if is_only_here or need == 'all' and found[6] == '1' then
    note_all(index, data, dirty, flush, meta)
    if found[6] then redis.call('HSET', data, '@cold_gaps', '2') end -- cold is going to get what was coalesced
    return first(is_only_here and UNNOTED or BEHIND)
  end
elseif meta and need == 'all' and found[6] == '1' and is_being_written(others, now) then
  return { WAIT, 0, 0 } -- if all the others are gone, what is here is not believed any more
end
local state, has = conflict_others(others), found[6] and PARTIAL or COMPLETE
if state == ALL_CHANGES then state, has = '!', PARTIAL end
local still = fill_token ~= '' and redis.call('HGET', lease, 'token') == fill_token
redis.call('UNLINK', lease)
if redis.call('HEXISTS', flush, 'deleted') == 1 then
  redis.call('HSET', flush, 'deleted', '2') -- begun again, maybe in cold alone: a fenced flusher must not delete it
end
local stamp = string.format('%015.0f', now)
redis.call('ZADD', intents, 0, stamp .. state .. record .. token)
set_deadline()
local pathless = 0
if writes ~= '' and found[5] then
  for _, one in ipairs(unpack_frames(found[5])) do
    if one == writes then pathless = 1 end
  end
end
if need == 'nothing' then end_ownership() end
return { meta and has or ABSENT, pathless, still and 1 or 0 }
