-- Shared by the scripts (included, after lib/thread, lib/framing, lib/chunks and lib/checkpoint): storing a checkpoint.

-- argv: what put.lua takes; is_home: whether cold has all else of the thread. Returns what put.lua does, or a problem.
local function put_checkpoint(index, data, argv, is_home)
  local checkpoint, by_age, run, header, named, names, flags = argv[1], argv[2], argv[3], argv[4], argv[5], argv[6], argv[7]
  local default, own, n, m, p = argv[8], argv[9], tonumber(argv[10]), tonumber(argv[11]), tonumber(argv[12])

  local FIELDS, SEEN = 12, 5 -- fields begin behind FIELDS of argv; what was found in them behind SEEN of found
  local others, unchanged = {}, {} -- positions of entries flagged e or x, and u
  for i = 1, #flags do
    local flag = string.byte(flags, i)
    if flag == 117 then unchanged[#unchanged + 1] = i -- u
    elseif flag ~= 118 then others[#others + 1] = i end -- v
  end
  local of_bases, of_chunks = n, n + m
  local of_others = of_chunks + p
  local of_unchanged = of_others + #others
  local VALUES = FIELDS + of_unchanged + #unchanged

  -- All that is to be looked at, in one call.
  local meta, problem, found = open_thread(index, data, checkpoint, named, unpack(argv, FIELDS + 1, FIELDS + math.min(of_unchanged, BATCH)))
  if problem then return problem end
  for from = BATCH + 1, meta and of_unchanged or 0, BATCH do
    local some = redis.call('HMGET', data, unpack(argv, FIELDS + from, FIELDS + math.min(from + BATCH - 1, of_unchanged)))
    for i = 1, #some do found[SEEN + from + i - 1] = some[i] end
  end
  local before, known = found[4], found[5]
  if not known and names == '' then return { named } end

  -- The state comes first: where a part of this is lost (docs/storage-format.md, Crashes), it counts too much, and never too little.
  local missing, fields, bytes, added = {}, { '@state', '' }, 0, 0
  if is_home then fields[3], fields[4] = '@cold_backed', '1' end
  local function store(field, value, size_before)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
    bytes = bytes + #value - size_before
  end
  if not known then store(named, names, 0) end

  -- Chunks. Those that are stored stay as they are. Those that are only named must be: where a version is stored that has
  -- them, all are, else each is looked at.
  local sure, sent = true, { [named] = true }
  for i = 1, m do
    local root = found[SEEN + of_bases + i]
    if not root or string.sub(root, 2, 17) ~= argv[VALUES + of_bases + i] then sure = false end
  end
  local function check_children(list, pos)
    local chunks = children(list, pos)
    for i = 1, #chunks do
      if not sent[chunks[i]] then
        sent[chunks[i]] = true
        if not meta or redis.call('HEXISTS', data, chunks[i]) == 0 then missing[#missing + 1] = chunks[i] end
      end
    end
  end
  if not sure then
    for i = 1, p do sent[argv[FIELDS + of_chunks + i]] = true end
  end
  for i = of_chunks + 1, of_others do
    if not found[SEEN + i] then
      local field, chunk = argv[FIELDS + i], argv[VALUES + i]
      if not sure and string.byte(field, 1) == 110 then check_children(chunk, 2) end -- 'n'
      store(field, chunk, 0)
    end
  end

  -- Values. One that takes the place of another that is in chunks leaves those for prune to look after.
  local stray = ''
  local function store_value(field, value, old)
    if not sure and in_chunks(value) then check_children(value, skip(value, 18, 2)) end
    if not old then added = added + 1 end
    if old and old ~= value and in_chunks(old) then stray = stray .. pack(old) end
    if old ~= value then store(field, value, #(old or '')) end
  end
  for i = 1, n do store_value(argv[FIELDS + i], argv[VALUES + i], found[SEEN + i]) end

  -- What a checkpoint that is put again held before: flags by channel and version, and the order of those; and its entries now.
  local held, order, entries, of = {}, {}, {}, nil
  if before then
    local first = string.find(checkpoint, '%z')
    reading = 'checkpoint ' .. string.sub(checkpoint, first + 1, -2)
    of = links(header)
    local was, list = links(before), nil
    list, problem = names_in(data, was.names)
    if problem then return problem end
    if was.names ~= named then stray = stray .. as_stray(string.sub(was.names, 1, 1), string.sub(was.names, 2)) end
    local versions = unpack_frames(was.tokens)
    for i = 1, #was.flags do
      local entry = string.sub(value_field('', list, versions, was.slots, i), 2)
      order[i], held[entry] = entry, string.sub(was.flags, i, i)
    end
    for _, entry in ipairs(unpack_frames(was.held)) do
      order[#order + 1], held[entry] = entry, '-'
    end
    local at = {}
    for i = 1, #flags do at[i] = 0 end
    for i = 1, #others do at[others[i]] = of_others + i end
    for i = 1, #unchanged do at[unchanged[i]] = of_unchanged + i end
    local of_values = 0
    for i = 1, #flags do
      if at[i] == 0 then of_values = of_values + 1 end
      entries[i] = string.sub(argv[FIELDS + (at[i] > 0 and at[i] or of_values)], first + 1)
    end
  end

  -- Entries without a value of the caller's: is there one?
  local kept, amended = nil, before
  for i = 1, #others do
    local entry, old = others[i], found[SEEN + of_others + i]
    local is_new = string.byte(flags, entry) == 101 -- e
    if old then
      if is_new then store_value(argv[FIELDS + of_others + i], '', old) end
      kept = kept or {}
      kept[entry], amended = '1', true
    elseif not is_new and before and held[entries[entry]] == '1' then
      return gone(data, argv[FIELDS + of_others + i])
    end
  end
  for i = 1, #unchanged do
    if not meta or redis.call('HEXISTS', data, argv[FIELDS + of_unchanged + i]) == 0 then missing[#missing + 1] = unchanged[i] end
  end
  if #missing > 0 then return missing end

  -- The header holds, beside its own, what was put aside and what it held before, so that no value loses its last holder unseen.
  if amended then
    of = of or links(header)
    local own_flags, holds, aside = {}, {}, unpack_frames(of.held)
    for i = 1, #flags do
      own_flags[i] = kept and kept[i] or string.sub(of.flags, i, i)
      if entries[i] then held[entries[i]] = nil end
    end
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
    fields[#fields + 1] = '@gc_roots'
    fields[#fields + 1] = (redis.call('HGET', data, '@gc_roots') or '') .. stray
  end

  local members = { 0, checkpoint }
  local function index_too(member)
    members[#members + 1] = 0
    members[#members + 1] = member
  end
  if meta then
    revise(meta)
  else
    meta = new_thread(redis.call('TIME'))
    index_too('')
  end
  if by_age ~= '' then index_too(by_age) end
  if run ~= '' then index_too(run) end
  meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + added
  fields[2] = state_of(meta)
  for from = 1, #fields, BATCH do redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields))) end
  redis.call('ZADD', index, unpack(members))
  touch(index, data, meta, default, own)
  return missing
end
