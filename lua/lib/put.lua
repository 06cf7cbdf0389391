-- Shared by the scripts (included): storing a checkpoint.

--- @include lib/thread
--- @include lib/revise
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint
--- @include lib/put_known

-- Returns the previous contents of a checkpoint that is put again: a flag by entry ('-' if retained), the order of the
-- entries, and the field of its names chunk if it differs from names_chunk, else false.
local function held_before(data, checkpoint, before, names_chunk)
  reading = 'checkpoint ' .. string.sub(checkpoint, string.find(checkpoint, '%z') + 1, -2)
  local held, order, was = {}, {}, links(before)
  local names = names_in(data, was.names)
  local versions = unpack_frames(was.tokens)
  for i = 1, #was.flags do
    local entry = string.sub(value_field('', names, versions, was.slots, i), 2)
    order[i], held[entry] = entry, string.sub(was.flags, i, i)
  end
  for _, entry in ipairs(unpack_frames(was.retained)) do
    order[#order + 1], held[entry] = entry, '-'
  end
  return held, order, was.names ~= names_chunk and was.names
end

-- Returns a header with the flags of kept values. It also retains the values that the checkpoint held before. So no
-- value loses its last holder unnoticed.
-- kept: '1' by position.
-- entries: channel and version by position.
-- held, order: results of held_before.
local function merge_header(header, kept, entries, held, order)
  local of = links(header)
  local flags, holds, retained = {}, {}, unpack_frames(of.retained)
  for i = 1, #of.flags do
    flags[i] = kept[i] or string.sub(of.flags, i, i)
    if entries[i] then held[entries[i]] = nil end
  end
  for i = 1, #retained do
    holds[i] = pack(retained[i])
    held[retained[i]] = nil
  end
  for i = 1, #order do
    if held[order[i]] and held[order[i]] ~= '0' then
      holds[#holds + 1] = pack(order[i])
      held[order[i]] = nil
    end
  end
  local between = string.sub(header, of.flags_to + 1, of.retained_from - 1)
  return string.sub(header, 1, of.flags_from - 1) .. table.concat(flags) .. between
    .. pack(table.concat(holds)) .. string.sub(header, of.behind)
end

-- Writes fields and members of the index. The first field is @state. If a crash loses a part of this
-- (docs/storage-format.md), the counters are too high, but never too low.
-- random: as set_tag takes it; key: as new_thread takes it.
local function commit(index, data, meta, fields, members, bytes, added, random, key)
  if meta then
    revise(meta)
  else
    meta = new_thread(redis.call('TIME'), fields, key)
    members[#members + 1] = ''
  end
  meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + added
  set_tag(meta, #fields > BATCH and '' or random) -- a tag needs one call together with everything it proves
  fields[2] = state_of(meta, meta.tag)
  for from = 1, #fields, BATCH do
    redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields)))
  end
  local scored = {}
  for i = 1, #members do scored[2 * i - 1], scored[2 * i] = 0, members[i] end
  redis.call('ZADD', index, unpack(scored))
  return meta
end

-- Stores a checkpoint after checking everything that it relies on. Returns the reply of put.lua.
-- argv: arguments of put.lua.
-- meta, found: results of look_up.
-- is_home: true if cold has the rest of the thread.
-- is_tiered: true if cold gets this checkpoint.
local function put_any(index, data, argv, meta, found, is_home, is_tiered)
  local checkpoint, by_age, run, header, flags = argv[1], argv[2], argv[3], argv[4], argv[5]
  local n, p, random = tonumber(argv[11]), tonumber(argv[12]), argv[10]
  local before, values, of, tag = found[4], FIELDS + n + p + argv[13], links(header), meta and meta.tag or ''

  local missing, fields, bytes, added = {}, { '@state', '' }, 0, 0
  if is_home then fields[3], fields[4] = '@cold_backed', '1' end
  local function store(field, value, size_before)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
    bytes = bytes + #value - size_before
  end

  -- Chunks. If a chunk is stored, everything below it is. Check the chunks that are only named.
  local seen = {}
  local function look_for(list, pos)
    local below = children(list, pos)
    for i = 1, #below do
      if not seen[below[i]] then
        seen[below[i]] = true
        if not meta or redis.call('HEXISTS', data, below[i]) == 0 then missing[#missing + 1] = below[i] end
      end
    end
  end
  for i = n + 1, n + p do seen[argv[FIELDS + i]] = true end
  for i = n + 1, n + p do
    local field, chunk = argv[FIELDS + i], argv[values + i]
    if field == of.names then names_read[field] = split_names(chunk) end
    if not found[SEEN + i] then
      if string.byte(field, 1) == 110 then look_for(chunk, 2) end -- 'n'
      store(field, chunk, 0)
    end
  end
  if not seen[of.names] and (not meta or redis.call('HEXISTS', data, of.names) == 0) then
    return { tag, '', 0, of.names }
  end
  local names = names_in(data, of.names)

  -- Values. A value that replaces one in chunks leaves these chunks to prune.
  local stray, is_rewritten = '', false
  local function store_value(field, value, old)
    if in_chunks(value) then look_for(value, skip(value, 18, 2)) end
    if not old then added = added + 1 end
    if old and old ~= value and in_chunks(old) then stray = stray .. pack(old) end
    if old and old ~= value then is_rewritten = true end
    if old ~= value then store(field, value, #(old or '')) end
  end
  for i = 1, n do store_value(argv[FIELDS + i], argv[values + i], found[SEEN + i]) end

  local held, order, entries, names_before = {}, {}, {}, nil
  if before then
    held, order, names_before = held_before(data, checkpoint, before, of.names)
    if names_before then stray = stray .. as_stray(string.sub(names_before, 1, 1), string.sub(names_before, 2)) end
  end

  -- Entries whose value was not sent.
  local kept, amended = {}, before
  local ns, tokens = string.sub(checkpoint, 2, (string.find(checkpoint, '%z'))), unpack_frames(of.tokens)
  local above -- the flags of the parent's entries
  local function has_none_above(entry)
    local parent = 'c' .. ns .. of.parent
    local stored = not above and meta and of.parent ~= '' and redis.call('HGET', data, parent)
    above = above or (stored and held_before(data, parent, stored, '')) or {}
    return above[entry] == '0'
  end
  for i = 1, #flags do
    local flag, field = string.byte(flags, i), value_field(ns, names, tokens, of.slots, i)
    entries[i] = string.sub(field, #ns + 2)
    if flag == 117 then -- u
      if not meta or redis.call('HEXISTS', data, field) == 0 then
        missing[#missing + 1] = has_none_above(entries[i]) and -i or i
      end
    elseif flag ~= 118 then -- e or x
      local old, is_new = meta and redis.call('HGET', data, field), flag == 101
      if old then
        if is_new then store_value(field, '', old) end
        kept[i], amended = '1', true
      elseif not is_new and before and held[entries[i]] == '1' then
        return gone(field)
      end
    end
  end
  if #missing > 0 then return { tag, '', 0, unpack(missing, 1, math.min(#missing, BATCH)) } end

  if amended then header = merge_header(header, kept, entries, held, order) end
  store(checkpoint, header, #(before or ''))
  if is_rewritten or before and before ~= header then
    fields[#fields + 1], fields[#fields + 2] = '@rewritten', next_rewrite(data)
  end
  if stray ~= '' then
    fields[#fields + 1] = '@gc_roots'
    fields[#fields + 1] = (redis.call('HGET', data, '@gc_roots') or '') .. stray
  end
  local members = { checkpoint }
  if by_age ~= '' then members[#members + 1] = by_age end
  if run ~= '' then members[#members + 1] = run end
  if header ~= argv[4] then random = '' end -- the caller does not know what is stored
  meta = commit(index, data, meta, fields, members, bytes, added, random, argv[14])
  touch(index, data, meta, argv[6], argv[7])
  return { tag, meta.tag, over_limit(index, data, argv, found, is_tiered) }
end

-- Stores a checkpoint over two tiers. Arguments and reply are those of put_any.
-- keeps_parent: true if a checkpoint that is put again keeps its parent. With another one, nothing is stored, and the
-- kept one is returned as the header has it.
local function put_checkpoint(index, data, argv, is_home, keeps_parent)
  local meta, problem, found = look_up(index, data, argv)
  if problem then return problem end
  local parent = keeps_parent and found[4] and links(found[4]).parent
  if parent and parent ~= links(argv[4]).parent then return parent end
  local before = meta and meta.tag
  local tag = put_known(index, data, argv, meta, found, is_home)
  if not tag then return put_any(index, data, argv, meta, found, is_home, true) end
  return { before, tag, over_limit(index, data, argv, found, true) }
end

-- True if a reply of put_checkpoint says that it stored nothing: the kept parent, an error, or what is missing.
local function stored_nothing(reply)
  return type(reply) == 'string' or reply.err or reply[4]
end
