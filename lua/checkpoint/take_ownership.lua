-- Takes a thread for its next owner.
--
-- KEYS[1] owner      string      <prefix>:{<thread>}:owner
-- ARGV[1] nonce      16 hex digits that name this owner
-- ARGV[2] lease      milliseconds for which it is owned, unless that is renewed
-- ARGV[3] kept       milliseconds for which the key stays behind that, so that who was late may go on if nobody took the thread
-- ARGV[4] mode       'free' where it is not to be taken from an owner whose lease lasts; 'any'
-- ARGV[5] run        the owner's run, percent-encoded, or '-'
-- ARGV[6] by         who the owner says it is, in printable ASCII
--
-- The epoch, with which the token begins, is the server's clock in microseconds, or one more than the last one. If the same owner asks again,
-- because the reply was lost, it gets the same token, and its lease begins anew.
-- Returns a list that begins with a code
--   OWNED  0  (record, milliseconds left) somebody else has it
--   TAKEN  1  (record) the caller has it
-- Errors: none of ours.

--- @include lib/owner

local owner = KEYS[1]
local OWNED, TAKEN = 0, 1
local MAX_EPOCH = 2 ^ 53 -- above that Lua's numbers leave some out
local nonce, lease, kept, mode, run, by = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]

local record = redis.call('GET', owner)
local held, until_then, _, held_run = owner_of(record)
local now = redis.call('TIME')
local millis = now[1] * 1000 + math.floor(now[2] / 1000)
local epoch, before = now[1] * 1000000 + now[2], '-'
if held then
  local last, name = string.match(held, '^(%d+)%-(%x+)$')
  if name == nonce then return { TAKEN, renewed(owner, record, lease, kept) } end
  local left = until_then - millis
  if left > 0 then
    if mode ~= 'any' then return { OWNED, record, left } end
    before = held_run == '-' and '?' or held_run
  end
  if #last <= 16 and last + 1 < MAX_EPOCH then epoch = math.max(epoch, last + 1) end
end
local taken = string.format('%.0f-%s %.0f %.0f %s %s %s', epoch, nonce, millis + lease, now[1] * 1000000 + now[2], run, before, by)
redis.call('SET', owner, taken, 'PX', string.format('%.0f', lease + kept))
return { TAKEN, taken }
