-- Stores one checkpoint with its new channel versions, all or nothing.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         checkpoint id, escaped
-- ARGV[3] head       frames: parent id, time, run
-- ARGV[4] named      field of the part with the names; the first are those of the entries' channels
-- ARGV[5] names      that part's bytes, or '' where the caller believes it is stored
-- ARGV[6] flags      a byte for each entry: v, new, its value is in the values; e, new and empty; u, unchanged, the caller
--                    holds its value; x, unchanged, the caller has none
-- ARGV[7] slots      two bytes for each entry: which of the tokens is its version
-- ARGV[8] tokens     versions, packed
-- ARGV[9] tail       the header's frames behind the links
-- ARGV[10] run       the run's member of the index, or ''
-- ARGV[11] default   the saver's TTL in milliseconds, or ''
-- ARGV[12] own       the thread's own TTL from now on in milliseconds, or ''
-- ARGV[13] aside     frames: values to store that are not of this checkpoint, each by its channel and version
-- ARGV[14] n         how many values follow
-- ARGV[15..14+n]     the values of the entries flagged v, then those of aside
-- ARGV[15+n..14+2n]  for each of them the stored version that has all the parts which are not sent of it: the digest in its
--                    root, and its field; '' where none is known, or it is not in parts
-- ARGV[15+2n..]      pairs: field and bytes of parts of these values
--
-- Returns what is not stored and was not sent: positions (from 1) of entries flagged u, and fields of parts; then nothing
-- was written, and the caller sends again with those. An empty list: done.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames
--- @include lib_parts
--- @include lib_checkpoint

local index, data = KEYS[1], KEYS[2]
local ns, id, head, named, names = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local flags, slots, tokens, tail, run = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local default, own, aside, n = ARGV[11], ARGV[12], ARGV[13], tonumber(ARGV[14])

local checkpoint = 'c' .. ns .. id
local meta, problem, before, known = open_thread(index, data, checkpoint, named)
if problem then return problem end
reading = 'checkpoint ' .. string.sub(id, 1, -2)
local missing, fields, bytes, added = {}, {}, 0, 0

local function store(field, value, size_before)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
  bytes = bytes + #value - size_before
end

-- Parts: those that are stored already stay as they are; each one that is only named must be there.
local sent = {}
for i = 15 + 2 * n, #ARGV, 2 do sent[ARGV[i]] = true end
if known then
  sent[named] = true
elseif names == '' then
  return { named }
else
  sent[named] = true
  store(named, names, 0)
end
local function check_children(list, pos)
  local parts = children(list, pos)
  for i = 1, #parts do
    if not sent[parts[i]] then
      sent[parts[i]] = true
      if not meta or redis.call('HEXISTS', data, parts[i]) == 0 then missing[#missing + 1] = parts[i] end
    end
  end
end
-- Where a version is there, all its parts are.
local check = false
for i = 1, n do
  local base = ARGV[14 + n + i]
  if base ~= '' then
    local root = redis.call('HGET', data, string.sub(base, 17))
    if not root or string.sub(root, 2, 17) ~= string.sub(base, 1, 16) then check = true end
  elseif in_parts(ARGV[14 + i]) then
    check = true
  end
end
for i = 15 + 2 * n, #ARGV, 2 do
  local field, part = ARGV[i], ARGV[i + 1]
  if not meta or redis.call('HEXISTS', data, field) == 0 then
    if check and string.byte(field, 1) == 110 then check_children(part, 2) end -- 'n'
    store(field, part, 0)
  end
end

-- Values. One that takes the place of another that is in parts leaves those for prune to look after.
local stray = ''
local function store_value(field, value)
  if check and in_parts(value) then check_children(value, skip(value, 18, 2)) end
  local old = meta and redis.call('HGET', data, field)
  if not old then added = added + 1 end
  if old and old ~= value and in_parts(old) then stray = stray .. pack(old) end
  if old ~= value then store(field, value, #(old or '')) end
end

-- What a checkpoint that is put again held before: flags by channel and version, and the order of those.
local held, order = {}, {}
if before then
  local of = links(before)
  local list
  list, problem = names_in(data, of.names)
  if problem then return problem end
  local versions = unpack_frames(of.tokens)
  for i = 1, #of.flags do
    local entry = string.sub(value_field('', list, versions, of.slots, i), 2)
    order[i], held[entry] = entry, string.sub(of.flags, i, i)
  end
  for _, entry in ipairs(unpack_frames(of.held)) do
    order[#order + 1], held[entry] = entry, '-'
  end
end

local channels, value = {}, 14
for channel in string.gmatch(known or names, '[^%z]*%z') do
  channels[#channels + 1] = channel
  if #channels == #flags then break end
end
local versions, kept = unpack_frames(tokens), {}
for i = 1, #flags do
  local flag = string.sub(flags, i, i)
  local field = value_field(ns, channels, versions, slots, i)
  local entry = before and string.sub(field, #ns + 2)
  kept[i] = '1'
  if flag == 'v' then
    value = value + 1
    store_value(field, ARGV[value])
  elseif not meta or redis.call('HEXISTS', data, field) == 0 then
    kept[i] = '0'
    if flag == 'x' and entry and held[entry] == '1' then return gone(data, field) end
    if flag == 'u' then missing[#missing + 1] = i end
  elseif flag == 'e' then
    store_value(field, '')
  end
  if entry then held[entry] = nil end
end

-- What is held beside its own: what was put aside, and what it held before, so that no value loses its last holder unseen.
local holds = {}
local function hold(entry)
  holds[#holds + 1] = pack(entry)
  held[entry] = nil
end
for _, entry in ipairs(unpack_frames(aside)) do
  value = value + 1
  store_value('b' .. ns .. entry, ARGV[value])
  hold(entry)
end
if #missing > 0 then return missing end
for i = 1, #order do
  if held[order[i]] and held[order[i]] ~= '0' then hold(order[i]) end
end

local header = head .. pack(named) .. pack(table.concat(kept)) .. pack(slots) .. pack(tokens) .. pack(table.concat(holds)) .. tail
store(checkpoint, header, #(before or ''))
if stray ~= '' then
  stray = (redis.call('HGET', data, '@stray') or '') .. stray
  fields[#fields + 1] = '@stray'
  fields[#fields + 1] = stray
end

if meta then revise(meta) else meta = new_thread(redis.call('TIME')) end
meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + added
fields[#fields + 1] = '@state'
fields[#fields + 1] = state_of(meta)
for from = 1, #fields, BATCH do redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields))) end
if not before then redis.call('ZADD', index, 0, '', 0, checkpoint) end
if not before and ns ~= '\0' then redis.call('ZADD', index, 0, 'i' .. id .. ns) end
if run ~= '' then redis.call('ZADD', index, 0, run) end
touch(index, data, meta, default, own)
return missing
