-- Describes a thread for threads(), if it matches the conditions.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] owner      string      <prefix>:{<thread>}:owner
-- ARGV[1] root       the root namespace, escaped
-- ARGV[2] interrupt  how the index member of a pending interrupt ends
-- ARGV[3] failure    the same of a pending error
-- ARGV[4] state      'active', 'interrupted', 'failed' or 'orphaned'; '' for any
-- ARGV[5] least      minimum size in bytes
-- ARGV[6] within     maximum time until it expires, in milliseconds, or '' for any
-- ARGV[7] pinned     '1' or '0', or '' for any
-- ARGV[8] dirty      '1' if cold lacks records of it, '0' if cold has all, or '' for any
-- ARGV[9] owned      '1' if it has an owner whose lease has not expired, '0' if not, or '' for any
--
-- Returns {id, header, checkpoints, bytes, left, waits, pinned, failed, owner, lease}, or nil if there is no such
-- thread, or if it does not match
--   id           of the newest checkpoint, or ''
--   header       of that checkpoint, up to its time, or ''
--   checkpoints  their number
--   left         milliseconds until the thread expires, -1 without a deadline
--   waits        1 if the newest checkpoint of the root has a pending interrupt, else 0
--   pinned       1 or 0
--   failed       1 if that checkpoint has a pending error, else 0
--   owner        the content of the owner's key, or ''
--   lease        the rest of the owner's lease in milliseconds
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/owner
--- @include lib/thread
--- @include lib/newest
--- @include lib/checkpoint

local index, data, owner = KEYS[1], KEYS[2], KEYS[3]
local root, interrupt, failure = ARGV[1], ARGV[2], ARGV[3]
local state, least, within, pinned, dirty, owned = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.bytes < least then return false end

local is_pinned, is_dirty, left = meta.ttl == '0' and 1 or 0, meta.dirty and 1 or 0, redis.call('PTTL', data)
if pinned ~= '' and tonumber(pinned) ~= is_pinned or dirty ~= '' and tonumber(dirty) ~= is_dirty then return false end
if within ~= '' and (left < 0 or left > tonumber(within)) then return false end

-- EXISTS first, so that users without the right to GET need none if nobody owns the thread.
local record = redis.call('EXISTS', owner) == 1 and redis.call('GET', owner) or ''
local held, until_then = owner_of(record)
local lease = held and math.max(0, until_then - now_in_milliseconds()) or 0
if not held then record = '' end
if owned ~= '' and (owned == '1') ~= (lease > 0) then return false end

local waits, failed = 0, 0
local id = newest_id(index, root)
if id then
  local from = 'w' .. root .. id
  local members = redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  for i = 1, #members do
    if string.sub(members[i], -#interrupt) == interrupt then waits = 1 end
    if string.sub(members[i], -#failure) == failure then failed = 1 end
  end
end
local is_orphaned = held and lease == 0 and until_then ~= '0'
local is_active = waits + failed == 0 and not is_orphaned
local is_wanted = { active = is_active, interrupted = waits == 1, failed = failed == 1, orphaned = is_orphaned }
if state ~= '' and not is_wanted[state] then return false end

local newest, head = newest_first(index, '(i\255', '[i', 1)[1], ''
if newest then
  local header = read_header(index, data, newest[2], newest[1]) or gone('c' .. newest[2] .. newest[1])
  head = string.sub(header, 1, skip(header, 1, 2) - 1)
end
return {
  newest and newest[1] or '', head, redis.call('ZLEXCOUNT', index, '[c', '(d'),
  meta.bytes, left, waits, is_pinned, failed, record, lease,
}
