-- Stores one checkpoint with its new channel versions, all or nothing.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] checkpoint its field, and its member of the index: c, namespace, id
-- ARGV[2] by_age     its member in the order (id, namespace): i, id, namespace; '' in the root
-- ARGV[3] run        its run's member, or ''
-- ARGV[4] header     the header to store: flag 1 for entries flagged v or u here, else 0; retained: entries of values
--                    that this checkpoint does not use
-- ARGV[5] flags      a byte for each entry: v, new with a value that follows; e, new and empty; u, unchanged with a
--                    stored value; x, unchanged without a value
-- ARGV[6] default    the saver's TTL in milliseconds, or ''
-- ARGV[7] own        a new own TTL for the thread in milliseconds, or ''
-- ARGV[8] history    the history limit: the saver's number or nothing, '/', the thread's own number from now on, 'all',
--                    or nothing; '' if the saver has no limit and the thread gets none now; '-' to ignore the thread's
--                    own limit, too
-- ARGV[9] tag        the tag that proves that everything else is stored; '' if the script has to check
-- ARGV[10] random    16 random hexadecimal digits for the thread's new tag
-- ARGV[11] n         number of values that follow
-- ARGV[12] p         number of chunks that follow
-- ARGV[13] q         number of entries flagged e
-- ARGV[14] key       the thread's data key: its id of 16 bytes, then the wrapped key if the thread may be new; '' if the
--                    caller does not encrypt
-- ARGV[15..]         fields: of the values (of the entries flagged v, then those that are retained); of the chunks, one
--                    of which may hold the names; of the entries flagged e. Then n values, and p chunks
--
-- Returns {before, tag, keep} if the checkpoint is stored. before is the thread's old tag, or ''; tag is its new one,
-- or ''. keep is 0, or the history limit if the namespace is over it. Then the caller prunes the thread to that limit.
-- Returns {before, '', 0, missing...} if the server lacks something that was not sent. missing has positions (from 1)
-- of entries flagged u, and fields of chunks. Nothing was written, and the caller sends all values.
-- Errors: DAMAGED, KEYCONFLICT, OTHERKEY, UNSUPPORTED.
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
