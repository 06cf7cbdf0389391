-- Gives a reader a fill lease for a checkpoint that is not here. If the thread has intents of dead writers, it is
-- dropped first. But a dirty thread is not dropped: it must be flushed before, and keeps the intents until then.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents
-- KEYS[4] lease      hash        <prefix>:{<thread>}:lease
-- KEYS[5] dirty      sorted set  <prefix>:{<thread>}:dirty
-- ARGV[1] token      the reader's own
-- ARGV[2] oldest     milliseconds after which a writer is gone
-- ARGV[3] length     length of the fill lease in milliseconds
-- ARGV[4] ns         namespace of the checkpoint, escaped
-- ARGV[5] id         its id, escaped, or '' for the newest
--
-- Returns
--   WRITING  0  a writer is writing the thread to cold
--   GRANTED  1  the reader has the fill lease, until the next write, deletion or fill lease
--   HERE     2  hot can answer now
--   BEHIND   3  cold lacks records of the namespace, or has not removed a rolled-back checkpoint
-- Errors: none of ours.

--- @include lib/tiers

local WRITING, GRANTED, HERE, BEHIND = 0, 1, 2, 3
local index, data, intents, lease, dirty = unpack(KEYS)
local MAX_RECORDS = 500 -- maximum number of checked records
local token, oldest, length, ns, id = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local now, busy, left = redis.call('TIME'), false, {}
now = now[1] * 1000 + math.floor(now[2] / 1000)
for _, intent in ipairs(redis.call('ZRANGEBYLEX', intents, '-', '+')) do
  if now - (tonumber(string.sub(intent, 1, 15)) or 0) < oldest then busy = true else left[#left + 1] = intent end
end
local behind = redis.call('EXISTS', dirty) == 1
if #left > 0 and not behind then
  redis.call('UNLINK', index, data)
  for i = 1, #left do redis.call('ZREM', intents, left[i]) end
end
if busy then return WRITING end
if #left > 0 and behind then return BEHIND end
local marks = redis.call('HMGET', data, '@cold_backed', '@complete', '@has_latest' .. ns, '@state')
local is_empty = not marks[4] and is_known_empty(dirty, lease)
if is_empty or redis.call('ZSCORE', dirty, 'd') then return HERE end
local has_newest = id == '' and marks[4] and extent_of(marks[1], marks[2], marks[3]) > 0
if has_newest or id ~= '' and redis.call('ZSCORE', index, 'c' .. ns .. id) then return HERE end
if id ~= '' and redis.call('ZSCORE', dirty, 'r' .. ns .. id) then return BEHIND end
local lags = id == '' and redis.call('ZRANGE', dirty, 0, MAX_RECORDS - 1) or {}
if #lags == MAX_RECORDS then return BEHIND end
for _, member in ipairs(lags) do
  if string.sub(member, 2, #ns + 1) == ns then return BEHIND end
end
-- A full server accepts this write, and then also the others of the script.
redis.call('HDEL', lease, 'barrier')
redis.call('HSET', lease, 'token', token)
redis.call('PEXPIRE', lease, length)
return GRANTED
