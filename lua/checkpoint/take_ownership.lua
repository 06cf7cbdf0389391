-- Takes a thread for its next owner, or queues a waiter for it.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- KEYS[2] waiters    sorted set  <prefix>:{<thread>}:waiters
-- ARGV[1] nonce      16 hex digits that name this owner
-- ARGV[2] lease      milliseconds until the lease expires, unless it is renewed; 0 for an owner without a lease
-- ARGV[3] kept       milliseconds by which the key outlives the lease; during these a late owner may still write
-- ARGV[4] mode       'free'  take it unless somebody has a lease
--                    'wait'  the same, in order of arrival
--                    'any'   take it always
-- ARGV[5] run        the owner's run, percent-encoded, or '-'
-- ARGV[6] by         the owner's description of itself, in printable ASCII
-- ARGV[7] arrival    the arrival in the last reply to this waiter, '0' in its first poll
--
-- A token begins with its epoch: the server's clock in microseconds, but at least the last epoch plus one. An owner
-- that asks again, because the reply was lost, gets the same token and a new lease.
--
-- The queue has two members for each waiter. The score of 'arrival <nonce>' is its time of arrival in microseconds.
-- The score of 'alive <nonce>' is the time in milliseconds at which the waiter is dropped. Most polls only read, a few
-- renew that score. A late waiter loses its members, and its next poll restores them from `arrival`. The key expires
-- with its last waiter. 'ended <nonce>' is a waiter that has given up, scored like 'alive': its request may come late.
--
-- The first waiter polls every 10 ms, or after 1 % of the time for which the thread has been owned, up to 100 ms. Each
-- waiter ahead of a caller adds 20 ms.
-- Returns a list that begins with a code
--   OWNED  0  (record or '', milliseconds to the next poll, arrival or '0') others own it or wait longer, or the caller
--             has given up
--   TAKEN  1  (record) the caller owns the thread
-- Errors: none of ours.
-- Rules: confirmed.

--- @include lib/owner

local owner, waiters = KEYS[1], KEYS[2]
local OWNED, TAKEN = 0, 1
local MAX_EPOCH = 2 ^ 53 -- Lua's numbers are exact up to this
local MIN_PAUSE, MAX_PAUSE_OF_FIRST, MAX_PAUSE, PAUSE_PER_WAITER = 10, 100, 600, 20 -- milliseconds
local LATE = 400 -- milliseconds after which a waiter that does not poll is skipped
local FIRST_ARRIVAL = '100000000000000' -- above all times in milliseconds, below all in microseconds
local nonce, lease, kept, mode = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local run, by, arrival = ARGV[5], ARGV[6], ARGV[7]

-- Returns the number of live waiters that arrived before the caller. Removes those that are gone.
local function count_ahead(millis)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', waiters, '-inf', millis)) do
    redis.call('ZREM', waiters, gone, 'arrival ' .. string.sub(gone, 7))
  end
  return redis.call('ZCOUNT', waiters, FIRST_ARRIVAL, '(' .. arrival)
end

-- Keeps the caller's place in the queue until its next poll.
local function stay_in_queue(millis, pause)
  local alive = redis.call('ZSCORE', waiters, 'alive ' .. nonce)
  if alive and alive - millis > pause + LATE / 2 then return end
  local deadline = string.format('%.0f', millis + pause + LATE)
  redis.call('ZADD', waiters, arrival, 'arrival ' .. nonce, deadline, 'alive ' .. nonce)
  if redis.call('PTTL', waiters) < pause + LATE then redis.call('PEXPIREAT', waiters, deadline) end
end

local record = redis.call('GET', owner)
local held, until_then, since, held_run = owner_of(record)
local now = redis.call('TIME')
local micros = string.format('%.0f', now[1] * 1000000 + now[2])
local millis = now[1] * 1000 + math.floor(now[2] / 1000)
local epoch, before, last, name = now[1] * 1000000 + now[2], '-'
if held then last, name = string.match(held, '^(%d+)%-(%x+)$') end
if name == nonce then return { TAKEN, renewed(owner, record, lease, kept) } end

local is_owned, ahead = held and until_then - millis > 0, 0
if redis.call('ZSCORE', waiters, 'ended ' .. nonce) then return { OWNED, '', MAX_PAUSE, '0' } end
if mode == 'wait' then
  if arrival == '0' then
    arrival = string.format('%.0f', redis.call('ZSCORE', waiters, 'arrival ' .. nonce) or micros)
  end
  ahead = count_ahead(millis)
end
if mode ~= 'any' and (is_owned or ahead > 0) then
  local owned_for = is_owned and millis - since / 1000 or 0
  local of_first = math.min(math.max(owned_for / 100, MIN_PAUSE), MAX_PAUSE_OF_FIRST)
  local pause = math.min(math.floor(of_first) + ahead * PAUSE_PER_WAITER, MAX_PAUSE)
  if mode == 'wait' then stay_in_queue(millis, pause) end
  return { OWNED, is_owned and record or '', pause, arrival }
end
if mode == 'wait' then redis.call('ZREM', waiters, 'arrival ' .. nonce, 'alive ' .. nonce) end
if is_owned then before = held_run == '-' and '?' or held_run end
if held and #last <= 16 and last + 1 < MAX_EPOCH then epoch = math.max(epoch, last + 1) end
local lease_end = lease > 0 and millis + lease or 0
local taken = string.format('%.0f-%s %.0f %s %s %s %s', epoch, nonce, lease_end, micros, run, before, by)
redis.call('SET', owner, taken, 'PX', string.format('%.0f', lease + kept))
return { TAKEN, taken }
