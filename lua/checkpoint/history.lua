-- Walks the parents of a checkpoint and collects the writes and the nearest stored value of some channels.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         where to begin, escaped: the target, or where the last page ended; '' for the newest
-- ARGV[3] target     '1' where id is the target, whose own writes and values do not count, '0' on a later page
-- ARGV[4] limit      how many ancestors at the most
-- ARGV[5] budget     stop behind the ancestor with which the answer has this many bytes, or four times as many were looked at
-- ARGV[6] refresh    '1' to move the deadline as a write does
-- ARGV[7] default    the saver's TTL in milliseconds, or ''
-- ARGV[8..]          pairs: a channel, as it is, and escaped
--
-- Returns {next, chunks, ancestor...}: next is the id to go on with, '' at the end; chunks as get answers them, those of all
-- seeds; an ancestor is {id, seeds, writes} with seeds a flat list of (escaped channel, value) and writes a flat list of
-- (task and kind, record) that may hold the channels.
-- Errors: DAMAGED, KEYCONFLICT, UNSUPPORTED.

--- @include lib/thread
--- @include lib/framing
--- @include lib/chunks
--- @include lib/checkpoint

local index, data = KEYS[1], KEYS[2]
local ns, id, target = ARGV[1], ARGV[2], ARGV[3]
local limit, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local refresh, default = ARGV[6], ARGV[7]

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return { '', {} } end

local remaining, open = {}, 0
for i = 8, #ARGV, 2 do
  remaining[ARGV[i + 1]] = pack(ARGV[i])
  open = open + 1
end

-- Where the remaining channels are among the names in a chunk, as a map; of the last chunk asked for. Returns (map, problem).
local places, places_of = {}, nil
local function places_in(field)
  if places_of ~= field then
    local names, problem = names_in(data, field)
    if problem then return nil, problem end
    places, places_of = {}, field
    for i = 1, #names do
      if remaining[names[i]] then places[names[i]] = i end
    end
  end
  return places, nil
end

-- The stored values of the remaining channels in a checkpoint, by its links. Returns (values by channel, problem).
local function seeds_in(of)
  local place, problem = places_in(of.names)
  if problem then return nil, problem end
  local names, _ = names_in(data, of.names)
  local tokens, found = nil, {}
  for channel, i in pairs(place) do
    local flag = remaining[channel] and string.byte(of.flags, i)
    if flag then
      tokens = tokens or unpack_frames(of.tokens)
      local field = value_field(ns, names, tokens, of.slots, i)
      local value = redis.call('HGET', data, field)
      if not value and flag == 49 then return nil, gone(data, field) end -- '1'
      if value and value ~= '' then found[channel] = value end
    end
  end
  return found, nil
end

local visited = {}
if target == '1' then
  if id == '' then id = newest_id(index, ns) end
  local header
  if id then
    visited[id] = true
    header, problem = read_header(index, data, ns, id)
    if problem then return problem end
  end
  id = header and links(header).parent or ''
end

local chunks, bytes, looked = new_chunks(true), 0, 0
local page = { '', chunks.flat }
while id ~= '' and open > 0 do
  if visited[id] then break end -- a caller put an ancestor again, below its own descendant. The caller looks at this over several pages
  if #page > limit + 1 or bytes + chunks.bytes >= budget or looked >= 4 * budget then
    page[1] = id
    break
  end
  visited[id] = true
  local header, of, found, all, size
  header, problem = read_header(index, data, ns, id)
  if problem then return problem end
  if not header then break end -- pruned
  of = links(header)
  found, problem = seeds_in(of)
  if problem then return problem end

  all, problem, size = pending_writes(index, data, ns, id)
  if problem then return problem end
  looked = looked + #header + size
  local writes = {}
  for i = 1, #all, 2 do
    for _, needle in pairs(remaining) do
      if string.find(all[i + 1], needle, 1, true) then
        writes[#writes + 1] = all[i]
        writes[#writes + 1] = all[i + 1]
        bytes = bytes + #all[i + 1]
        break
      end
    end
  end

  local seeds = {}
  for channel, value in pairs(found) do
    problem = read_chunks(data, value, chunks)
    if problem then return problem end
    seeds[#seeds + 1] = channel
    seeds[#seeds + 1] = value
    bytes = bytes + #value
    remaining[channel] = nil
    open = open - 1
  end
  page[#page + 1] = { id, seeds, writes }
  id = of.parent
end
if refresh == '1' then touch(index, data, meta, default, '') end
return page
