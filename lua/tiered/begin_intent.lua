-- Says that a thread is being written where this server does not see it: until it is done, what is here is not to be believed.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents     sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[6] flush      hash        <prefix>:{<thread>}:flush
-- ARGV[1] token      the writer's own
-- ARGV[2] default    the saver's TTL in milliseconds, or ''
-- ARGV[3] longer     milliseconds that the intent is kept longer than the thread
-- ARGV[4] writes     the beginning of the members of a checkpoint's pending writes, or ''
-- ARGV[5] fill_token of the fill lease that the caller was given when there was nothing, or ''
-- ARGV[6] record     16 bytes that name what is written; sixteen * for all of the thread
-- ARGV[7] need       'all' where cold must have all that was coalesced; 'nothing' where the thread is deleted next; else ''
-- ARGV[8] gone       milliseconds after which a writer is gone
--
-- An intent is 15 digits of milliseconds, '-', or '!' where it is conflicted, the record, the token. Two intents about one record spoil
-- each other, as their writes may reach cold and this server in different orders.
-- Returns {what cold has of the thread, 1 if those writes were brought back, 1 if nothing happened since that fill lease}, the latter
-- two else 0; the first is 0 where the thread is not here, 1 where cold has all values that are here; 2 where some was coalesced, or another
-- changes all of it there, or may have. 3: cold is behind with the thread, and has to get that first, and 4: it has nothing of it, as it is from
-- before there were tiers (or what was noted for it is gone), so all is noted for it; then nothing else was done, but that the thread is not
-- written behind for some seconds. 5: some was coalesced, and cannot get that while others write the thread; then nothing was done.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/framing
--- @include lib/write_behind
--- @include lib/again

local BARRIER = 5000 -- milliseconds
local index, data, intents, lease, dirty, flush = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, default, longer, writes, fill_token, record = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local need, gone = ARGV[7], tonumber(ARGV[8])

-- Who writes it meanwhile is to wait for its claim, else this might last for ever.
local function first(answer)
  redis.call('HSET', lease, 'barrier', '1')
  redis.call('PEXPIRE', lease, BARRIER)
  return { answer, 0, 0 }
end

if redis.call('EXISTS', dirty) == 1 then return first(3) end
local meta, problem, found = open_thread(index, data, '@cold_backed', '@no_task_path', '@cold_gaps')
if problem then return problem end
local others = redis.call('ZRANGEBYLEX', intents, '-', '+')
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if meta and #others == 0 and need ~= 'nothing' then
  local is_only_here = not found[4] or meta.dirty
  if is_only_here or need == 'all' and found[6] == '1' then
    note_all(index, data, dirty, flush, meta)
    if found[6] then redis.call('HSET', data, '@cold_gaps', '2') end -- cold is going to get what was coalesced
    return first(is_only_here and 4 or 3)
  end
elseif meta and need == 'all' and found[6] == '1' then -- what is here is not believed any more where all the others are gone
  for _, other in ipairs(others) do
    local age = now - (tonumber(string.sub(other, 1, 15)) or 0)
    if string.sub(other, 33) ~= token and age >= 0 and age < gone then return { 5, 0, 0 } end
  end
end
local all, state, has = string.rep('*', 16), '-', found[6] and 2 or 1
for _, other in ipairs(others) do
  local about = string.sub(other, 17, 32)
  if string.sub(other, 33) == token then
    redis.call('ZREM', intents, other)
  elseif about == record or about == all or record == all then
    state = '!'
    redis.call('ZREM', intents, other)
    redis.call('ZADD', intents, 0, string.sub(other, 1, 15) .. '!' .. string.sub(other, 17))
    if about == all then has = 2 end
  end
end
local still = fill_token ~= '' and redis.call('HGET', lease, 'token') == fill_token
redis.call('UNLINK', lease)
if redis.call('HEXISTS', flush, 'deleted') == 1 then
  redis.call('HSET', flush, 'deleted', '2') -- and begun again, maybe in cold alone: a fenced flusher must not delete that
end
local stamp = string.format('%015.0f', now)
redis.call('ZADD', intents, 0, stamp .. state .. record .. token)
local left, kept = redis.call('PTTL', index), redis.call('PTTL', intents)
if default == '' or left == -1 then
  redis.call('PERSIST', intents)
else
  redis.call('PEXPIRE', intents, string.format('%.0f', math.max(left, kept, tonumber(default)) + longer))
end
local pathless = 0
if writes ~= '' and found[5] then
  for _, one in ipairs(unpack_frames(found[5])) do
    if one == writes then pathless = 1 end
  end
end
return { meta and has or 0, pathless, still and 1 or 0 }
