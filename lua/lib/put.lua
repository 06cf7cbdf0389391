-- Shared by the scripts (included, after lib/thread, lib/common_case, lib/framing, lib/chunks and lib/checkpoint):
-- storing a checkpoint.

-- What a checkpoint that is put again held before: a flag by channel and version ('-': retained), and the order of those.
-- Returns (held, order, problem, its names chunk where that is another than names_chunk).
local function held_before(data, checkpoint, before, names_chunk)
  reading = 'checkpoint ' .. string.sub(checkpoint, string.find(checkpoint, '%z') + 1, -2)
  local held, order, was = {}, {}, links(before)
  local names, problem = names_in(data, was.names)
  if problem then return nil, nil, problem end
  local versions = unpack_frames(was.tokens)
  for i = 1, #was.flags do
    local entry = string.sub(value_field('', names, versions, was.slots, i), 2)
    order[i], held[entry] = entry, string.sub(was.flags, i, i)
  end
  for _, entry in ipairs(unpack_frames(was.retained)) do
    order[#order + 1], held[entry] = entry, '-'
  end
  return held, order, nil, was.names ~= names_chunk and was.names
end

-- A header with the flags of what it kept, which also retains what the checkpoint held before, so that no value loses its last holder unseen.
-- kept: '1' by entry; entries: channel and version of each; held and order: what held_before answered.
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
  return string.sub(header, 1, of.flags_from - 1) .. table.concat(flags) .. string.sub(header, of.flags_to + 1, of.retained_from - 1)
    .. pack(table.concat(holds)) .. string.sub(header, of.behind)
end

-- Writes fields, the first of which is @state, and members of the index. The state comes first: where a part of this is lost
-- (docs/storage-format.md, Crashes), it counts too much, and never too little.
local function commit(index, data, meta, fields, members, bytes, added)
  if meta then
    revise(meta)
  else
    meta = new_thread(redis.call('TIME'))
    members[#members + 1] = ''
    fields[#fields + 1], fields[#fields + 2] = '@rewritten', meta.rev
  end
  meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + added
  fields[2] = state_of(meta)
  for from = 1, #fields, BATCH do redis.call('HSET', data, unpack(fields, from, math.min(from + BATCH - 1, #fields))) end
  local scored = {}
  for i = 1, #members do scored[2 * i - 1], scored[2 * i] = 0, members[i] end
  redis.call('ZADD', index, unpack(scored))
  return meta
end

-- Stores a checkpoint in any case. Returns what put.lua does, or a problem.
-- argv: what put.lua takes; meta, found: what look_up answered; is_home: true if cold has all else of the thread;
-- is_tiered: true if cold gets this.
local function put_any(index, data, argv, meta, found, is_home, is_tiered)
  local checkpoint, by_age, run, header, names_chunk, names, flags = argv[1], argv[2], argv[3], argv[4], argv[5], argv[6], argv[7]
  local default, own, n, m, p = argv[8], argv[9], tonumber(argv[10]), tonumber(argv[11]), tonumber(argv[12])

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
  local before, known, problem = found[4], found[5], nil
  if not known and names == '' then return { names_chunk } end

  local missing, fields, bytes, added = {}, { '@state', '' }, 0, 0
  if is_home then fields[3], fields[4] = '@cold_backed', '1' end
  local function store(field, value, size_before)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
    bytes = bytes + #value - size_before
  end
  if not known then store(names_chunk, names, 0) end

  -- Chunks. Those that are stored stay as they are. Those that are only named must be: where a version is stored that has
  -- them, all are, else each is looked at.
  local sure, sent = true, { [names_chunk] = true }
  for i = 1, m do
    local root = found[SEEN + of_bases + i]
    if not root or string.sub(root, 2, 17) ~= argv[VALUES + of_bases + i] then sure = false end
  end
  local function check_children(list, pos)
    local below = children(list, pos)
    for i = 1, #below do
      if not sent[below[i]] then
        sent[below[i]] = true
        if not meta or redis.call('HEXISTS', data, below[i]) == 0 then missing[#missing + 1] = below[i] end
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
  local stray, is_rewritten = '', false
  local function store_value(field, value, old)
    if not sure and in_chunks(value) then check_children(value, skip(value, 18, 2)) end
    if not old then added = added + 1 end
    if old and old ~= value and in_chunks(old) then stray = stray .. pack(old) end
    if old and old ~= value then is_rewritten = true end
    if old ~= value then store(field, value, #(old or '')) end
  end
  for i = 1, n do store_value(argv[FIELDS + i], argv[VALUES + i], found[SEEN + i]) end

  local held, order, entries = {}, {}, {}
  if before then
    local names_before
    held, order, problem, names_before = held_before(data, checkpoint, before, names_chunk)
    if problem then return problem end
    if names_before then stray = stray .. as_stray(string.sub(names_before, 1, 1), string.sub(names_before, 2)) end
    local at, of_values, cut = {}, 0, string.find(checkpoint, '%z')
    for i = 1, #others do at[others[i]] = of_others + i end
    for i = 1, #unchanged do at[unchanged[i]] = of_unchanged + i end
    for i = 1, #flags do
      if not at[i] then of_values = of_values + 1 end
      entries[i] = string.sub(argv[FIELDS + (at[i] or of_values)], cut + 1)
    end
  end

  -- Entries without a value of the caller's: is there one?
  local kept, amended = {}, before
  for i = 1, #others do
    local entry, old = others[i], found[SEEN + of_others + i]
    local is_new = string.byte(flags, entry) == 101 -- e
    if old then
      if is_new then store_value(argv[FIELDS + of_others + i], '', old) end
      kept[entry], amended = '1', true
    elseif not is_new and before and held[entries[entry]] == '1' then
      return gone(data, argv[FIELDS + of_others + i])
    end
  end
  for i = 1, #unchanged do
    if not meta or redis.call('HEXISTS', data, argv[FIELDS + of_unchanged + i]) == 0 then missing[#missing + 1] = unchanged[i] end
  end
  if #missing > 0 then return missing end

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
  meta = commit(index, data, meta, fields, members, bytes, added)
  touch(index, data, meta, default, own)
  return over_limit(index, data, argv, found, is_tiered)
end

-- Stores a checkpoint. Takes and returns what put_any does.
local function put_checkpoint(index, data, argv, is_home, is_tiered)
  local meta, problem, found = look_up(index, data, argv, argv[10] + argv[11] + argv[12] + argv[13])
  if problem then return problem end
  if put_new(index, data, argv, meta, found, is_home) then return over_limit(index, data, argv, found, is_tiered) end
  return put_any(index, data, argv, meta, found, is_home, is_tiered)
end

-- True if put_checkpoint stored the checkpoint.
local function is_stored(reply)
  return type(reply) == 'number' or not reply.err and #reply == 0
end
