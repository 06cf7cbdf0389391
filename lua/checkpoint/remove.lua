-- Removes fields of a thread, and their members of the index. One step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] dirty      sorted set  <prefix>:{<thread>}:dirty, only if a cold saver keeps the removed data
-- ARGV[1] revision   the revision of the plan, or the one that the last step returned
-- ARGV[2] dry        '1' to count only
-- ARGV[3] known      '1' if the histories of other checkpoints that processes remember stay valid
-- ARGV[4..]          names as in docs/storage-format.md: c, a header, with up to 500 of the checkpoint's records of
--                    writes; w, a record of writes; b, a value; n, p, z, a chunk; r, a run's member; @, a field about
--                    the thread. The roots of values, writes and lists of chunks are added to @gc_roots, unless that
--                    is removed too. ^ and the name of a header: only its parent's name; the checkpoint stays
--
-- Returns {checkpoints, writes, values, bytes, revision}: the numbers removed, and the new revision. Returns nil if
-- nothing was removed: the thread changed since the plan was made, it is gone, or cold lacks one of the names.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: owned.

--- @include lib/may_write
--- @include lib/thread
--- @include lib/remove

local index, data, dirty = KEYS[1], KEYS[2], KEYS[3]
local revision, dry, is_known = ARGV[1], ARGV[2] == '1', ARGV[3] == '1'

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.rev ~= revision then return false end

return (remove_fields(index, data, meta, ARGV, 4, { dry = dry, is_known = is_known, dirty = dirty }))
