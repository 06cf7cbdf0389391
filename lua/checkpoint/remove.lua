-- Removes fields of a thread, and their members of the index. One step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] dirty      sorted set  <prefix>:{<thread>}:dirty, if a cold saver keeps what is removed here; else nothing
-- ARGV[1] revision   the revision the plan was made at, or the one the last step answered
-- ARGV[2] dry        '1' to count only
-- ARGV[3] known      '1' if what processes remember of the histories of the other checkpoints stays true
-- ARGV[4..]          names as in docs/storage-format.md: c, a header, with up to 500 of the checkpoint's records of
--                    writes; w, a record of writes; b, a value; n, p, z, a chunk; r, a run's member; @, a field about
--                    the thread. The roots of values, writes and lists of chunks are noted in @gc_roots, unless that
--                    goes too. ^ and the name of a header: its parent only, as that goes; the checkpoint stays
--
-- Returns {checkpoints, writes, values, bytes, revision}: what was removed, and the new revision. nil if nothing was
-- removed, because a checkpoint was put or something else was removed since the plan was made, because the thread is
-- gone, or because cold lacks one of the names.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: owned.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/remove

local index, data, dirty = KEYS[1], KEYS[2], KEYS[3]
local revision, dry, is_known = ARGV[1], ARGV[2] == '1', ARGV[3] == '1'

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.rev ~= revision then return false end

return (remove_fields(index, data, meta, ARGV, 4, { dry = dry, is_known = is_known, dirty = dirty }))
