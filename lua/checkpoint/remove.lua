-- Removes fields of a thread, and their members of the index. One step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] revision   the revision the plan was made at, or the one the last step answered
-- ARGV[2] dry        '1' to count alone
-- ARGV[3..]          names as in docs/storage-format.md: c, a header, with up to 500 of the checkpoint's records of writes; w, a
--                    record of writes; b, a value; n, p, z, a chunk; r, a run's member; s, a call's; @gc_roots. What is below a value,
--                    a write or a list of chunks is noted in @gc_roots, unless that goes too. ^ and the name of a header: its parent alone,
--                    as that goes; the checkpoint stays
--
-- Returns {checkpoints, writes, values, bytes, revision}: what was removed, and the new revision. nil where the thread was
-- put to, or something else was removed, since the plan was made (or the thread is gone): nothing was removed.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: owned.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/remove

local index, data = KEYS[1], KEYS[2]
local revision, dry = ARGV[1], ARGV[2] == '1'

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.rev ~= revision then return false end

return (remove_fields(index, data, meta, ARGV, 3, dry))
