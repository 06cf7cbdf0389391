-- Stores one checkpoint with its new channel versions, all or nothing.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         checkpoint id, escaped
-- ARGV[3] header     as it is to be stored, if nothing but the values sent speaks against it: flag 1 for entries flagged v
--                    and u here, else 0; held: values to store that are not of this checkpoint
-- ARGV[4] names      bytes of the part with its names, or '' where the caller believes it is stored
-- ARGV[5] flags      a byte for each entry: v, new, its value is in the values; e, new and empty; u, unchanged, the caller
--                    holds its value; x, unchanged, the caller has none
-- ARGV[6] default    the saver's TTL in milliseconds, or ''
-- ARGV[7] own        the thread's own TTL from now on in milliseconds, or ''
-- ARGV[8] n          how many values follow
-- ARGV[9..8+n]       the values of the entries flagged v, then those that are held
-- ARGV[9+n..]        for each of them that is in parts, the stored version that has all the parts which are not sent of it:
--                    the digest in its root, and its field; '' where none is known. Then pairs: field and bytes of parts
--
-- Returns what is not stored and was not sent: positions (from 1) of entries flagged u, and fields of parts; then nothing
-- was written, and the caller sends again with those. An empty list: done.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames
--- @include lib_parts
--- @include lib_checkpoint

local index, data = KEYS[1], KEYS[2]
local ns, id, header, names, flags = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local default, own, n = ARGV[6], ARGV[7], tonumber(ARGV[8])

reading = 'checkpoint ' .. string.sub(id, 1, -2)
local checkpoint, of = 'c' .. ns .. id, links(header)
local meta, problem, before, known = open_thread(index, data, checkpoint, of.names)
if problem then return problem end
if not known and names == '' then return { of.names } end

-- Where the values go, and all that is to be looked at, in one call.
local channels, tokens, entries, places, look = {}, unpack_frames(of.tokens), {}, {}, {}
for channel in string.gmatch(known or names, '[^%z]*%z') do
  channels[#channels + 1] = channel
  if #channels >= #flags then break end
end
for i = 1, #flags do
  entries[i] = value_field(ns, channels, tokens, of.slots, i)
  if string.byte(flags, i) == 118 then places[#places + 1] = entries[i] end -- v
end
local aside = unpack_frames(of.held)
for i = 1, #aside do places[#places + 1] = 'b' .. ns .. aside[i] end
local bases, first = {}, 9 + n
for i = 1, n do
  look[i] = places[i]
  if in_parts(ARGV[8 + i]) then
    bases[#bases + 1] = ARGV[first]
    look[n + #bases] = string.sub(ARGV[first], 17)
    first = first + 1
  end
end
for i = first, #ARGV, 2 do look[#look + 1] = ARGV[i] end
for i = 1, #flags do
  local flag = string.byte(flags, i)
  if flag == 101 or flag == 120 then look[#look + 1] = entries[i] end -- e, x
end
local found = meta and fetch(data, look) or {}

local missing, fields, bytes, added = {}, {}, 0, 0
local function store(field, value, size_before)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
  bytes = bytes + #value - size_before
end
if not known then store(of.names, names, 0) end

-- Parts. Those that are stored stay as they are. Those that are only named must be: where a version is stored that has
-- them, all are, else each is looked at.
local sure = true
for i = 1, #bases do
  local root = found[n + i]
  if bases[i] == '' or not root or string.sub(root, 2, 17) ~= string.sub(bases[i], 1, 16) then sure = false end
end
local sent = { [of.names] = true }
for i = first, #ARGV, 2 do sent[ARGV[i]] = true end
local function check_children(list, pos)
  local parts = children(list, pos)
  for i = 1, #parts do
    if not sent[parts[i]] then
      sent[parts[i]] = true
      if not meta or redis.call('HEXISTS', data, parts[i]) == 0 then missing[#missing + 1] = parts[i] end
    end
  end
end
local at = n + #bases
for i = first, #ARGV, 2 do
  at = at + 1
  if not found[at] then
    if not sure and string.byte(ARGV[i], 1) == 110 then check_children(ARGV[i + 1], 2) end -- 'n'
    store(ARGV[i], ARGV[i + 1], 0)
  end
end

-- Values. One that takes the place of another that is in parts leaves those for prune to look after.
local stray = ''
local function store_value(field, value, old)
  if not sure and in_parts(value) then check_children(value, skip(value, 18, 2)) end
  if not old then added = added + 1 end
  if old and old ~= value and in_parts(old) then stray = stray .. pack(old) end
  if old ~= value then store(field, value, #(old or '')) end
end
for i = 1, n do store_value(places[i], ARGV[8 + i], found[i]) end

-- What a checkpoint that is put again held before: flags by channel and version, and the order of those.
local held, order = {}, {}
if before then
  local was, list = links(before), nil
  list, problem = names_in(data, was.names)
  if problem then return problem end
  if was.names ~= of.names then stray = stray .. as_stray(string.sub(was.names, 1, 1), string.sub(was.names, 2)) end
  local versions = unpack_frames(was.tokens)
  for i = 1, #was.flags do
    local entry = string.sub(value_field('', list, versions, was.slots, i), 2)
    order[i], held[entry] = entry, string.sub(was.flags, i, i)
  end
  for _, entry in ipairs(unpack_frames(was.held)) do
    order[#order + 1], held[entry] = entry, '-'
  end
end

-- Entries without a value of the caller's: is there one?
local kept, amended = nil, before
for i = 1, #flags do
  local flag = string.byte(flags, i)
  local entry = before and string.sub(entries[i], #ns + 2)
  if flag == 117 then -- u
    if not meta or redis.call('HEXISTS', data, entries[i]) == 0 then missing[#missing + 1] = i end
  elseif flag ~= 118 then -- e, x
    at = at + 1
    if found[at] then
      if flag == 101 then store_value(entries[i], '', found[at]) end
      kept = kept or {}
      kept[i], amended = '1', true
    elseif flag == 120 and entry and held[entry] == '1' then
      return gone(data, entries[i])
    end
  end
  if entry then held[entry] = nil end
end
if #missing > 0 then return missing end

-- The header holds, beside its own, what was put aside and what it held before, so that no value loses its last holder unseen.
if amended then
  local own_flags, holds = {}, {}
  for i = 1, #flags do own_flags[i] = kept and kept[i] or string.sub(of.flags, i, i) end
  for i = 1, #aside do
    holds[i] = pack(aside[i])
    held[aside[i]] = nil
  end
  for i = 1, #order do
    if held[order[i]] and held[order[i]] ~= '0' then
      holds[#holds + 1] = pack(order[i])
      held[order[i]] = nil
    end
  end
  header = string.sub(header, 1, of.flags_from - 1) .. table.concat(own_flags) .. string.sub(header, of.flags_to + 1, of.held_from - 1)
    .. pack(table.concat(holds)) .. string.sub(header, of.behind)
end
store(checkpoint, header, #(before or ''))
if stray ~= '' then
  fields[#fields + 1] = '@stray'
  fields[#fields + 1] = (redis.call('HGET', data, '@stray') or '') .. stray
end

if meta then revise(meta) else meta = new_thread(redis.call('TIME')) end
meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + added
fields[#fields + 1] = '@state'
fields[#fields + 1] = state_of(meta)
for from = 1, #fields, BATCH do redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields))) end
if not before then redis.call('ZADD', index, 0, '', 0, checkpoint) end
if not before and ns ~= '\0' then redis.call('ZADD', index, 0, 'i' .. id .. ns) end
if of.run ~= '' then redis.call('ZADD', index, 0, of.run) end
touch(index, data, meta, default, own)
return missing
