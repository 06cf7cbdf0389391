-- Reads one channel of a checkpoint.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] channel    the channel, escaped
-- ARGV[3] id         the checkpoint's id, escaped; '' for the newest of the namespace
--
-- Returns {id, header, version, value, chunks}, or nil if there is no such thread, checkpoint or channel
--   header  the checkpoint's header, up to its time
--   chunks  the value's chunks, as a flat list of (field, bytes)
-- If the channel has a version but no value, header is complete, value is '', and chunks is empty. If the thread is
-- encrypted, header is complete, and chunks has its names chunk, too. Then version is '' if there is no such channel.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/newest
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local ns, channel, id = ARGV[1], ARGV[2], ARGV[3]
local meta, problem = open_thread(index, data)
if problem then return problem end
if meta and id == '' then id = newest_id(index, ns) end
if not meta or not id then return false end

local header = read_header(index, data, ns, id)
if not header then return false end
local of = links(header)
local chunks, is_encrypted = new_chunks(true), meta.format >= IS_ENCRYPTED
local names, tokens = names_in(data, of.names, is_encrypted and chunks), unpack_frames(of.tokens)
for i = 1, #of.flags do
  if names[i] == channel then
    local field, version = value_field(ns, names, tokens, of.slots, i)
    local value = redis.call('HGET', data, field)
    if not value and string.byte(of.flags, i) == 49 then gone(field) end -- '1'
    if not value or value == '' then return { id, header, version, '', chunks.flat } end
    read_chunks(data, value, chunks)
    if not is_encrypted then header = string.sub(header, 1, skip(header, 1, 2) - 1) end
    return { id, header, version, value, chunks.flat }
  end
end
return is_encrypted and { id, header, '', '', chunks.flat }
