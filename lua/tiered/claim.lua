-- Claims a thread for a flusher, and returns records that cold lacks.
--
-- KEYS[1] data       hash        <prefix>:{<thread>}:data
-- KEYS[2] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[3] flush      hash        <prefix>:{<thread>}:flush
-- KEYS[4] intents    sorted set  <prefix>:{<thread>}:intents
-- ARGV[1] token      the flusher's own; with the token of its last claim it continues that claim
-- ARGV[2] length     length of the claim in milliseconds
-- ARGV[3] most       maximum number of records; fewer if they hold megabytes
-- ARGV[4] at_once    '1' to include records that are set aside and not due yet
-- ARGV[5] gone       milliseconds after which a writer is gone
--
-- Returns {bases, number of records, 1 if the last claim was not acked, record...}, or
--   BUSY  1  another flusher has the claim, or a writer has an intent. That writer must record its write first,
--            because a fenced flusher may have undone it in cold
-- A record is {member, score, refusals, writes, chunks}
--   member    its member of the index. `d`, for a deleted thread, is always first
--   refusals  how often cold refused it
--   writes    the record of pending writes, nil if it is gone, or if the member is of another kind
--   chunks    the chunks of these writes, as a flat list of (field, bytes)
-- The bases are a flat list of (namespace, id of the last checkpoint that cold stored there), both escaped.
-- Errors: DAMAGED.

--- @include lib/chunks

local BUSY = 1
local data, dirty, flush, intents = unpack(KEYS)
local token, length, most, at_once, gone = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

local PAGE, BUDGET, size = 200, 4000000, 0 -- members; bytes
local SET_BACK = 600000 -- milliseconds; a record that is due later was set aside before the clock was set back
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held = redis.call('HMGET', flush, 'token', 'until')
local remaining = held[1] and held[1] ~= token and (tonumber(held[2]) or 0) - now or 0
if remaining > 0 and remaining <= length then return BUSY end -- a longer time shows that the clock was set back
for _, intent in ipairs(redis.call('EXISTS', dirty) == 1 and redis.call('ZRANGEBYLEX', intents, '-', '+') or {}) do
  local age = now - (tonumber(string.sub(intent, 1, 15)) or 0)
  if age >= 0 and age < gone then
    redis.call('HDEL', flush, '')
    if held[1] == token then redis.call('HSET', flush, 'until', '0') end
    return BUSY
  end
end
redis.call('HDEL', flush, '') -- a full server accepts this write, and then the others
local unacked = held[1] or redis.call('HEXISTS', flush, 'fenced') == 1
local answer, bases, seen = { {}, redis.call('ZCARD', dirty), unacked and 1 or 0 }, {}, {}
local aside, from, has_tombstone = redis.call('HLEN', flush) > 0, 0, false
repeat
  local members = redis.call('ZRANGE', dirty, from, from + PAGE - 1, 'WITHSCORES')
  from = from + PAGE
  for i = 1, #members, 2 do
    if #answer > most + 2 or has_tombstone then break end
    local member = members[i]
    local _, _, tries, due = string.find(aside and redis.call('HGET', flush, 'x' .. member) or '0 0 ', '^(%d+) (%d+) ')
    tries, due = math.min(tonumber(tries) or 0, 1000000), tonumber(due) or 0
    if due <= now or due > now + SET_BACK or at_once == '1' then
      local record = string.byte(member) == 119 and redis.call('HGET', data, member) -- w
      local chunks = new_chunks(true)
      chunks.lenient = true -- the flusher reports missing chunks when it decodes the record
      if record then pcall(function() read_chunks_of_writes(data, record, chunks) end) end
      answer[#answer + 1] = { member, members[i + 1], tries, record, chunks.flat }
      if record then size = size + #record + chunks.bytes end
      if size > BUDGET then most = 0 end
      if string.byte(member) == 99 then -- c
        local ns = string.sub(member, 2, (string.find(member, '%z')))
        local base = not seen[ns] and redis.call('HGET', data, '@flushed_head' .. ns)
        seen[ns] = true
        if base then
          bases[#bases + 1] = ns
          bases[#bases + 1] = base
        end
      end
    elseif member == 'd' then
      has_tombstone = true
    end
  end
until #members < 2 * PAGE or #answer > most + 2 or has_tombstone
if #answer > 3 then
  redis.call('HSET', flush, 'token', token, 'until', string.format('%.0f', now + length))
  redis.call('PERSIST', flush)
elseif held[1] == token then -- nothing is left to do in a claim that was not acked
  redis.call('HSET', flush, 'until', '0')
end
answer[1] = bases
return answer
