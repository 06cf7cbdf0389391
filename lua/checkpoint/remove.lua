-- Removes fields of a thread, and their members of the index: one step of prune and delete_for_runs.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] dirty      sorted set  <prefix>:{<thread>}:dirty, only if a cold saver keeps the removed data
-- ARGV[1] revision   the revision of the plan; after the first step the revision that the last step returned
-- ARGV[2] dry        '1' to only count
-- ARGV[3..]          names of fields (docs/storage-format.md). Up to 500 records of writes are removed with a header.
--                    ^ and the name of a header: remove only its parent's id; the checkpoint stays
--
-- The script adds the roots of removed values, writes and lists of chunks to @gc_roots, unless it removes that too.
-- Returns {checkpoints, writes, values, bytes, revision}: the numbers removed, and the new revision. Returns nil if it
-- removed nothing, because the thread is gone or has changed since the plan was made, or cold lacks one of the names.
-- Errors: DAMAGED, KEYCONFLICT, NOTOWNER, UNSUPPORTED.
-- Rules: owned.

--- @include lib/may_write
--- @include lib/thread
--- @include lib/remove

local index, data, dirty = KEYS[1], KEYS[2], KEYS[3]
local revision, dry = ARGV[1], ARGV[2] == '1'
local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta or meta.rev ~= revision then return false end
return (remove_fields(index, data, meta, ARGV, 3, { dry = dry, dirty = dirty }))
