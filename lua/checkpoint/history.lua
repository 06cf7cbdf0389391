-- Walks the ancestors of a checkpoint, and collects the writes and the nearest stored value of some channels. The walk
-- of a channel ends at its value, or at a known point that has the channel.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- KEYS[3] intents    sorted set  <prefix>:{<thread>}:intents, only over two tiers
-- KEYS[4] dirty      sorted set  <prefix>:{<thread>}:dirty, only over two tiers
-- KEYS[5] lease      hash        <prefix>:{<thread>}:lease, only over two tiers
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         first id of the page, escaped: the target, or `next` of the last page. '' for the newest
-- ARGV[3] target     the target, escaped, on a later page. '' on the first page, where its own writes do not count
-- ARGV[4] lowest     `lowest` of the last page
-- ARGV[5] limit      maximum number of ancestors on a page
-- ARGV[6] budget     bytes after which the page ends. It also ends when four times as many were read
-- ARGV[7] refresh    '1' to move the deadline as a write does
-- ARGV[8] default    the saver's TTL in milliseconds, or ''
-- ARGV[9] n          number of channels
-- ARGV[10] m         number of known points
-- ARGV[11..]         n pairs of a channel's name and its escaped name
--                    m known points, each with
--                      the checkpoint's id, escaped
--                      rewritten, lowest, checkpoints and tasks of its basis
--                      a byte for each channel, '1' if the caller knows its history there
--                    fields of chunks that the caller has, with all below
--
-- Returns {next, chunks, basis, ancestor...}
--   next      the first id of the next page, or ''
--   chunks    the chunks of values and writes, as a flat list of (field, bytes)
--   ancestor  {id, seeds, writes, point}
--     seeds   stored values, as a flat list of (escaped channel, field, value)
--     writes  records that may hold the channels, as a flat list of (task and kind, record)
--     point   the number (from 1) of the known point at which the walk of some channels ended, or 0
-- If the thread is encrypted, each ancestor has all of its records and its header, chunks has the names chunks, and the
-- first ancestor is the target itself, without seeds and writes.
-- The basis lists the facts on which the reply depends:
--   target                   its id, or '' if it is not there
--   rewritten                @rewritten
--   lowest                   the lowest id that matters
--   checkpoints, tasks       number of checkpoints, and of tasks with writes, with ids from lowest up to the target
--   missing                  the id of a missing parent, or ''
--   checkpoints, tasks       the same numbers, from the lowest id of the pages before
--   unsure                   a byte for each channel: '1' if a version that had no value may get one
-- Over two tiers it may also return
--   INTENTS  1  there are intents about the thread
-- or {PARTIAL}, or {PARTIAL, basis} if hot has the target:
--   PARTIAL  2  hot lacks some of the ancestors
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.
-- Rules: reads.

--- @include lib/thread
--- @include lib/newest
--- @include lib/checkpoint
--- @include lib/tiers

local INTENTS, PARTIAL = 1, 2
local ALL = 2 -- the extent of a thread that is all here
local index, data, intents, dirty, lease = unpack(KEYS)
local ns, id, target, lowest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local limit, budget = tonumber(ARGV[5]), tonumber(ARGV[6])
local refresh, default = ARGV[7], ARGV[8]
local n, m = tonumber(ARGV[9]), tonumber(ARGV[10])

if intents and redis.call('EXISTS', intents) == 1 then return INTENTS end
local meta, problem, found = open_thread(index, data, '@rewritten', '@cold_backed', '@complete', '@has_latest' .. ns)
if problem then return problem end
if not meta then
  if intents and not is_known_empty(dirty, lease) then return { PARTIAL } end
  return { '', {}, { '', '', '', 0, 0, '', 0, 0, '' } }
end
local extent = intents and extent_of(found[5], found[6], found[7]) or ALL
if id == '' and extent == 0 then return { PARTIAL } end

local remaining, open, channels, unsure = {}, n, {}, {}
for i = 1, n do
  channels[i] = ARGV[10 + 2 * i]
  remaining[channels[i]] = pack(ARGV[9 + 2 * i])
end
local points = {} -- the position in ARGV of each known point, by its id
for i = 1, m do points[ARGV[5 + 2 * n + 6 * i]] = 5 + 2 * n + 6 * i end

-- Returns the number of checkpoints, and of tasks with writes, that have ids from `from` up to, but without, `upto`.
local function count(from, upto)
  local lower, upper = ns .. from, ns .. upto
  local checkpoints = redis.call('ZLEXCOUNT', index, '[c' .. lower, '(c' .. upper)
  return checkpoints, redis.call('ZLEXCOUNT', index, '[w' .. lower, '(w' .. upper)
end

-- True if the caller's known point still holds: nothing below it was rewritten, and nothing was added.
local function is_known(at)
  if not found[4] or ARGV[at + 1] ~= found[4] then return false end
  local checkpoints, tasks = count(ARGV[at + 2], ARGV[at])
  return checkpoints == tonumber(ARGV[at + 3]) and tasks == tonumber(ARGV[at + 4])
end

-- True if a version has a random part, so that no other checkpoint gets a value for it. Versions of our savers begin
-- with a v. The pattern matches versions of LangGraph's savers.
local function is_unique(token)
  return string.byte(token, 1) == 118 or string.find(token, '^s%d+%.0%.%d%d%d%d%d%d')
end

-- Returns the positions of the remaining channels in a names chunk, by channel. Most ancestors share the chunk, so the
-- last result is kept.
local places, places_of = {}, nil
local function places_in(field)
  if places_of == field then return places end
  places, places_of = {}, field
  for i, name in ipairs(names_in(data, field)) do
    if remaining[name] then places[name] = i end
  end
  return places
end

-- Reads the stored values of the remaining channels in a checkpoint.
-- of: its links. Returns (values by channel, fields by channel).
local function seeds_in(of)
  local names, tokens, values, fields = names_in(data, of.names), nil, {}, {}
  for channel, i in pairs(places_in(of.names)) do
    local flag = remaining[channel] and string.byte(of.flags, i)
    if flag then
      tokens = tokens or unpack_frames(of.tokens)
      local field, token = value_field(ns, names, tokens, of.slots, i)
      local value = redis.call('HGET', data, field)
      if not value and flag == 49 then gone(field) end -- '1'
      if value and value ~= '' then
        values[channel], fields[channel] = value, field
      elseif not value and not is_unique(token) then
        unsure[channel] = true
      end
    end
  end
  return values, fields
end

-- Ends the walk of the channels whose history at a checkpoint the caller knows. Returns the number of the known point,
-- or 0.
local function point_of(id)
  local at, known = points[id], {}
  for i = 1, at and n or 0 do
    if remaining[channels[i]] and string.byte(ARGV[at + 5], i) == 49 then known[#known + 1] = channels[i] end -- '1'
  end
  if #known == 0 or not is_known(at) then return 0 end
  if above(lowest, ARGV[at + 2]) then lowest = ARGV[at + 2] end
  for i = 1, #known do remaining[known[i]] = nil end
  open = open - #known
  return math.floor((at - 5 - 2 * n) / 6)
end

-- Collects the channels that may get a value later from a missing checkpoint, because their versions are not unique.
local function note_unsure(of)
  local names, tokens = names_in(data, of.names), unpack_frames(of.tokens)
  for channel, i in pairs(places_in(of.names)) do
    local token = i <= #of.flags and select(2, value_field(ns, names, tokens, of.slots, i))
    if token and not is_unique(token) then unsure[channel] = true end
  end
end

local visited, missing, header = { [target] = true }, '', nil
local is_first, is_here = target == '', true
if is_first then
  if id == '' then id = newest_id(index, ns) or '' end
  header = id ~= '' and read_header(index, data, ns, id)
  is_here = header and true or false
  if is_here then target, lowest, visited[id] = id, id, true end
  id = is_here and links(header).parent or ''
end

local chunks, bytes, looked, is_encrypted = new_chunks(true), 0, 0, meta.format >= IS_ENCRYPTED
for i = 11 + 2 * n + 6 * m, #ARGV do chunks.seen[ARGV[i]] = true end
local before, page = lowest, { '', chunks.flat, {} }
local function answer(id, seeds, writes)
  local point = point_of(id)
  if id ~= target or point > 0 or is_encrypted then
    page[#page + 1] = { id, seeds, writes, point, is_encrypted and header or nil }
  end
end
if is_first and is_here then answer(target, {}, {}) end
while id ~= '' and open > 0 do
  if visited[id] then -- a caller put an ancestor again, below its own descendant. The client checks this across pages
    missing = id
    break
  end
  if #page > limit + 2 or bytes + chunks.bytes >= budget or looked >= 4 * budget then
    page[1] = id
    break
  end
  visited[id] = true
  header = read_header(index, data, ns, id)
  if not header then -- pruned, or not there yet
    missing, lowest = id, ''
    break
  end
  if above(lowest, id) then lowest = id end -- not always, as the clocks of writers differ
  local of, all, writes = links(header), pending_writes(index, data, ns, id), {}
  if is_encrypted then names_in(data, of.names, chunks) end
  local values, fields = seeds_in(of)
  looked = looked + #header + all.size
  for i = 1, #all, 2 do
    local is_wanted = is_encrypted
    for _, needle in pairs(remaining) do
      if string.find(all[i + 1], needle, 1, true) then
        is_wanted = true
        read_chunks_of_writes(data, all[i + 1], chunks)
        break
      end
    end
    if is_wanted then
      writes[#writes + 1], writes[#writes + 2] = all[i], all[i + 1]
      bytes = bytes + #all[i + 1]
    end
  end

  local seeds = {}
  for channel, value in pairs(values) do
    read_chunks(data, value, chunks)
    seeds[#seeds + 1], seeds[#seeds + 2], seeds[#seeds + 3] = channel, fields[channel], value
    bytes = bytes + #value
    remaining[channel] = nil
    open = open - 1
  end
  answer(id, seeds, writes)
  id = of.parent
end

local is_partial = extent ~= ALL and (missing ~= '' or not is_here)
if is_partial and not (is_first and is_here) then return { PARTIAL } end
if is_partial then note_unsure(links(redis.call('HGET', data, 'c' .. ns .. target))) end
local basis = { is_here and target or '', found[4] or '', '', 0, 0, missing, 0, 0, '' }
if is_here then
  basis[3] = lowest
  basis[4], basis[5] = count(lowest, target)
  if not is_first then basis[7], basis[8] = count(before, target) end
end
for i = 1, n do basis[9] = basis[9] .. (unsure[channels[i]] and '1' or '0') end
if is_partial then return { PARTIAL, basis } end
page[3] = basis
if refresh == '1' then touch(index, data, meta, default, '') end
return page
