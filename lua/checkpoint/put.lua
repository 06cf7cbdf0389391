-- Stores one checkpoint with its new channel versions, all or nothing.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] checkpoint its field, and its member of the index: c, namespace, id
-- ARGV[2] by_age     its member in the order (id, namespace): i, id, namespace; '' in the root
-- ARGV[3] run        its run's member, or ''
-- ARGV[4] header     the header to store. Its flag of an entry is 1 if the entry is v or u below, else 0. It retains
--                    the entries of sent values that this checkpoint does not use
-- ARGV[5] flags      a byte for each entry:
--                      v  new, and its value follows
--                      e  new, without a value
--                      u  unchanged, with a stored value
--                      x  unchanged, without a value
-- ARGV[6] default    the saver's TTL in milliseconds, or ''
-- ARGV[7] own        a new own TTL for the thread in milliseconds, or ''
-- ARGV[8] history    the history limit, one of
--                      saver/own  The saver's number may be missing. The thread's own, from now on, is a number or
--                                 'all', or is missing if it stays as it is
--                      ''         the saver has no limit, and the thread's own stays as it is
--                      '-'        ignore all limits
-- ARGV[9] tag        the tag that proves that everything else is stored; '' if the script has to check
-- ARGV[10] random    16 random hexadecimal digits for the thread's new tag
-- ARGV[11] n         number of values that follow
-- ARGV[12] p         number of chunks that follow
-- ARGV[13] q         number of entries flagged e
-- ARGV[14] key       the thread's data key: its id of 16 bytes, then the wrapped key if the thread may be new; '' if the
--                    caller does not encrypt
-- ARGV[15..]         n fields of values: first of the entries flagged v, then of those that are retained
--                    p fields of chunks, one of which may hold the names
--                    q fields of the entries flagged e
--                    n values
--                    p chunks
--
-- Returns {before, tag, keep} if the checkpoint is stored
--   before   the thread's old tag, or ''
--   tag      its new tag, or ''
--   keep     the history limit if the namespace is over it, else 0. Over it, the caller prunes the thread
-- Returns {before, '', 0, missing...} if the server lacks something that was not sent. Then nothing was written, and
-- the caller sends all values.
--   missing  positions (from 1) of entries flagged u, and fields of chunks. A position is negative if the parent has no
--            value of this version either. The caller leaves such a value out
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, OTHERKEY, STALEPARENT, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/may_write
--- @include lib/put_known

local index, data = KEYS[1], KEYS[2]
local meta, problem, found = look_up(index, data, ARGV)
if problem then return problem end
local tag = put_known(index, data, ARGV, meta, found)
if tag then return { ARGV[9], tag, over_limit(index, data, ARGV, found, false) } end

--- @include lib/put

return put_any(index, data, ARGV, meta, found, false, false)
