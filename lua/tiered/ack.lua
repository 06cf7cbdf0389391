-- Removes the records that cold has stored, and sets aside those that it refused. If no record of the thread is left,
-- the thread gets its deadline back.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[4] flush      hash        <prefix>:{<thread>}:flush
-- KEYS[5] intents    sorted set  <prefix>:{<thread>}:intents
-- ARGV[1] token      the flusher's own
-- ARGV[2] n          number of records that cold got
-- ARGV[3] m          number of records that cold refused
-- ARGV[4] kept       milliseconds for which a deletion or a rollback is remembered
-- ARGV[5] gaps       '1' if coalesced checkpoints are among the n
-- ARGV[6..]          n pairs: a member, its score when it was taken. m triples: a member, the milliseconds until its
--                    next try, the error. Then pairs: a namespace, the id of the last checkpoint that cold stored
--                    there, both escaped
--
-- A record that was written again meanwhile stays. If another flusher has taken over, the script adds these records:
-- - those that this flusher tried and may have overwritten in cold, or all records if it deleted the thread there
-- - the deletion of the thread, if it is due, or was due before the thread was recreated. It is not added while a
--   writer has an intent, because cold may have data that is not here
-- - removals of rolled-back checkpoints that this flusher may have written to cold late
-- Returns the number of records that are left, or
--   FENCED  -1  another flusher had taken over
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/framing
--- @include lib/again

local FENCED = -1
local index, data, dirty, flush, intents = unpack(KEYS)
local token, n, m, kept, gaps = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local ASIDE = 5 + 2 * n
local BASES = ASIDE + 3 * m

local meta, problem = open_thread(index, data)
if problem and not string.find(problem.err, '^DAMAGED') then return problem end
redis.call('HDEL', flush, '') -- a full server accepts this write, and then the others
local own = redis.call('HGET', flush, 'token') == token
if not own then
  local tried, has_deleted = {}, false
  for i = 6, ASIDE, 2 do tried[#tried + 1] = ARGV[i] end
  for i = ASIDE + 1, BASES, 3 do tried[#tried + 1] = ARGV[i] end
  for i = 1, #tried do has_deleted = has_deleted or tried[i] == 'd' end
  local deleted, again = redis.call('EXISTS', intents) == 0 and redis.call('HGET', flush, 'deleted'), {}
  local is_whole = meta and redis.call('HEXISTS', data, '@complete') == 1
  local has_tombstone = redis.call('ZSCORE', dirty, 'd') -- another flusher may have deleted it in cold without an ack
  if has_tombstone or deleted and (not meta and deleted == '1' or is_whole) then again[1] = 'd' end
  if again[1] or has_deleted then
    if meta then add_all(index, data, again) end
    if meta and again[1] ~= 'd' then redis.call('HSET', data, '@cold_gaps', '1') end -- cold lost all other data
  else
    local misplaced = meta and misplaced_writes(index, data) or {}
    for i = 1, #tried do
      local known = redis.call('HEXISTS', data, tried[i]) == 1 and not misplaced[string.match(tried[i], '^.*%z')]
      if known then again[#again + 1] = tried[i] end
    end
  end
  if has_deleted and not again[1] and redis.call('EXISTS', intents) == 1 then -- the writer adds its own records
    redis.call('HSET', flush, 'fenced', '1')
    if redis.call('EXISTS', dirty) == 0 then redis.call('PEXPIRE', flush, kept) end
  end
  local removed = again[1] ~= 'd' and redis.call('HGET', flush, 'removed')
  for i = 1, removed and #tried or 0 do -- it may have brought back rolled-back checkpoints
    local checkpoint = string.match(tried[i], '^[cw]([^%z]*%z[^%z]*%z)')
    local is_removed = checkpoint and string.find(removed, pack('r' .. checkpoint), 1, true)
    if is_removed and redis.call('HEXISTS', data, 'c' .. checkpoint) == 0 then again[#again + 1] = 'r' .. checkpoint end
  end
  note_again(index, data, dirty, flush, meta, again)
  return FENCED
end

local aside = 0 -- change of the number of records set aside
for i = 6, ASIDE, 2 do
  local member = ARGV[i]
  if tonumber(redis.call('ZSCORE', dirty, member) or 0) == tonumber(ARGV[i + 1]) then
    redis.call('ZREM', dirty, member)
    if member == 'd' then redis.call('HSET', flush, 'deleted', '1')
    elseif redis.call('HEXISTS', flush, 'deleted') == 1 then -- and written anew
      redis.call('HSET', flush, 'deleted', '2')
    end
    if string.byte(member) == 114 then -- r
      redis.call('HDEL', data, '@flushed_head' .. string.sub(member, 2, (string.find(member, '%z'))))
    end
  end
  aside = aside - redis.call('HDEL', flush, 'x' .. member)
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i = ASIDE + 1, BASES, 3 do
  local _, _, tries, due = string.find(redis.call('HGET', flush, 'x' .. ARGV[i]) or '0 0 ', '^(%d+) (%d+) ')
  tries, due = math.min(tonumber(tries) or 0, 1000000), tonumber(due) or 0
  if due <= now then tries, due = tries + 1, now + ARGV[i + 1] end -- tries before it is due count as one
  aside = aside + redis.call('HSET', flush, 'x' .. ARGV[i], string.format('%.0f %.0f ', tries, due) .. ARGV[i + 2])
end
if aside ~= 0 then
  local before = string.match(redis.call('HGET', flush, 'set_aside') or '', '^%d%d?%d?%d?%d?%d?%d?%d?%d?$') or 0
  redis.call('HSET', flush, 'set_aside', string.format('%.0f', math.max(0, before + aside)))
end
redis.call('HDEL', flush, 'token', 'until')
local left = redis.call('ZCARD', dirty)
if meta and not redis.call('ZSCORE', dirty, 'd') then -- else cold still has to delete what this claim brought
  if left == 0 or redis.call('HEXISTS', flush, 'fenced') == 0 then -- else cold may have deleted it
    for i = BASES + 1, #ARGV, 2 do redis.call('HSET', data, '@flushed_head' .. ARGV[i], ARGV[i + 1]) end
  end
  if gaps == '1' then redis.call('HSET', data, '@cold_gaps', '1') end
end
if left == 0 then
  local remembered = redis.call('HMGET', flush, 'deleted', 'fenced', 'removed', 'new')
  redis.call('UNLINK', flush)
  if remembered[1] then redis.call('HSET', flush, 'deleted', remembered[1]) end
  if remembered[2] and redis.call('EXISTS', intents) == 1 then redis.call('HSET', flush, 'fenced', '1') end
  if remembered[3] and now - string.sub(remembered[3], 1, 15) < tonumber(kept) then
    redis.call('HSET', flush, 'removed', remembered[3])
  end
  if remembered[4] then redis.call('HSET', flush, 'new', remembered[4]) end
  redis.call('PEXPIRE', flush, kept)
  if meta and redis.call('ZCARD', index) == 1 then -- a rollback left nothing
    redis.call('UNLINK', index, data)
  elseif meta and meta.dirty then
    redis.call('HDEL', data, '@deferred_ttl')
    local ttl = meta.dirty
    meta.dirty = false
    touch(index, data, meta, ttl, '')
  end
end
return left
