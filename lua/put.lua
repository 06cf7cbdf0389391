-- Stores one checkpoint with its new channel versions, all or nothing.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         checkpoint id, escaped
-- ARGV[3] head       frames: parent id, time, run
-- ARGV[4] tail       frames: type and bytes of the checkpoint, type and bytes of the metadata
-- ARGV[5] run        the run's member of the index, or ''
-- ARGV[6] default    the saver's TTL in milliseconds, or ''
-- ARGV[7] own        the thread's own TTL from now on in milliseconds, or ''
-- ARGV[8] n          how many entries follow
-- ARGV[9..8+n]       entries: a flag, the channel, the version. Flags: v, new, its value is in the values; e, new and
--                    empty; u, unchanged, the caller holds its value; x, unchanged, the caller has none; s, not of this
--                    checkpoint, its value is in the values and to be stored too
-- ARGV[9+n..]        values of the entries flagged v and s, in their order
--
-- Returns the positions (from 1) of the u entries whose value is not stored; then nothing was written, and the caller
-- sends again with those values. An empty list: done.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames
--- @include lib_checkpoint

local index, data = KEYS[1], KEYS[2]
local ns, id, head, tail, run = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local default, own, n = ARGV[6], ARGV[7], tonumber(ARGV[8])

local meta, problem = open_thread(index, data)
if problem then return problem end

-- What a checkpoint that is put again held before: entries, and their flags by name.
local checkpoint = 'c' .. ns .. id
local before, held, flags = redis.call('HGET', data, checkpoint), {}, {}
if before then
  local _, packed = links(before)
  held = unpack_frames(packed)
  for i = 1, #held do flags[string.sub(held[i], 2)] = string.sub(held[i], 1, 1) end
end

local missing, entries, fields, has = {}, {}, {}, {}
local value = 8 + n
for i = 1, n do
  local flag, name = string.sub(ARGV[8 + i], 1, 1), string.sub(ARGV[8 + i], 2)
  local blob = 'b' .. ns .. name
  local kept = flag == 's' and '-' or '1'
  if flag == 'v' or flag == 's' then
    value = value + 1
    fields[#fields + 1] = blob
    fields[#fields + 1] = ARGV[value]
  elseif redis.call('HEXISTS', data, blob) == 0 then
    kept = '0'
    if flag == 'x' and flags[name] == '1' then
      return redis.error_reply('DAMAGED a stored value is gone from ' .. data)
    end
    if flag == 'u' then missing[#missing + 1] = i end
  elseif flag == 'e' then
    fields[#fields + 1] = blob
    fields[#fields + 1] = ''
  end
  entries[i] = pack(kept .. name)
  has[name] = true
end
if #missing > 0 then return missing end

-- A checkpoint that is put again keeps holding what it held before, so that no value loses its last holder unseen.
for i = 1, #held do
  local name = string.sub(held[i], 2)
  if flags[name] ~= '0' and not has[name] then entries[#entries + 1] = pack('-' .. name) end
end
fields[#fields + 1] = checkpoint
fields[#fields + 1] = head .. pack(table.concat(entries)) .. tail

local bytes, added = 0, 0
if not meta then first_revision(data) end
for i = 1, #fields, 2 do
  bytes = bytes + #fields[i + 1] - redis.call('HSTRLEN', data, fields[i])
  added = added + redis.call('HSET', data, fields[i], fields[i + 1])
end
redis.call('ZADD', index, 0, '', 0, checkpoint, 0, 'i' .. id .. ns)
if run ~= '' then redis.call('ZADD', index, 0, run) end
count(data, '@rev', 1)
count(data, '@bytes', bytes)
count(data, '@blobs', added - (before and 0 or 1))
touch(index, data, meta, default, own)
return missing
