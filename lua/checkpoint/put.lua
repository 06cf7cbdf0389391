-- Stores one checkpoint with its new channel versions, all or nothing.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] checkpoint its field, and its member of the index: c, namespace, id
-- ARGV[2] by_age     its member in the order (id, namespace): i, id, namespace; '' in the root
-- ARGV[3] run        its run's member, or ''
-- ARGV[4] header     as it is to be stored, if nothing but the values sent speaks against it: flag 1 for entries flagged v
--                    and u here, else 0; retained: values to store that are not of this checkpoint
-- ARGV[5] named      field of the chunk with its names
-- ARGV[6] names      bytes of that chunk, or '' where the caller believes it is stored
-- ARGV[7] flags      a byte for each entry: v, new, its value is in the values; e, new and empty; u, unchanged, the caller
--                    holds its value; x, unchanged, the caller has none
-- ARGV[8] default    the saver's TTL in milliseconds, or ''
-- ARGV[9] own        the thread's own TTL from now on in milliseconds, or ''
-- ARGV[10] n         how many values follow
-- ARGV[11] m         how many of them are in chunks
-- ARGV[12] p         how many chunks follow
-- ARGV[13] q         how many entries are flagged e or x
-- ARGV[14] r         how many are flagged u
-- ARGV[15] history   how much of the thread's history is kept: the saver's number, '/', the thread's own number from now on or 'all', '/', and of a
--                    subgraph's call the id of the root checkpoint it started from, escaped; any of them may be missing. '' for nothing of
--                    it; '-' where nothing is to be removed now, whatever the thread says
-- ARGV[16..]         fields: of the values (of the entries flagged v, then those that are retained); of the m stored versions that
--                    have all the chunks which are not sent of them, '' where none is known; of the chunks; of the entries
--                    flagged e and x; of those flagged u. Then what belongs to the first of these: n values, m digests (those in
--                    the roots of the versions), p chunks
--
-- Returns what is not stored and was not sent: positions (from 1) of entries flagged u, and fields of chunks; then nothing
-- was written, and the caller sends again with those. An empty list: done.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: confirmed, owned.

--- @include lib/thread
--- @include lib/common_case

local index, data = KEYS[1], KEYS[2]
local meta, problem, found = look_up(index, data, ARGV, ARGV[10] + ARGV[11] + ARGV[12] + ARGV[13])
if problem then return problem end
local is_put = put_new(index, data, ARGV, meta, found)
if is_put and not is_limited(ARGV, found) then return {} end

--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint
--- @include lib/trim
--- @include lib/put

if not is_put then return put_any(index, data, ARGV, meta, found) end
trim(index, data, meta, ARGV[1], ARGV[4], ARGV[15], found[6])
return {}
