-- Walks the parents of a checkpoint and collects the writes and the nearest stored value of some channels.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index
-- KEYS[2] data       hash        <prefix>:{<thread>}:data
-- ARGV[1] ns         namespace, escaped
-- ARGV[2] id         where to begin, escaped: the target, or where the last page ended; '' for the newest
-- ARGV[3] target     '1' where id is the target, whose own writes and values do not count, '0' on a later page
-- ARGV[4] limit      how many ancestors at the most
-- ARGV[5] budget     stop behind the ancestor with which the answer has this many bytes
-- ARGV[6] refresh    '1' to move the deadline as a write does
-- ARGV[7] default    the saver's TTL in milliseconds, or ''
-- ARGV[8..]          pairs: a channel, as it is, and escaped
--
-- Returns {next, ancestor...}: next is the id to go on with, '' at the end; an ancestor is {id, seeds, writes} with
-- seeds a flat list of (escaped channel, value) and writes a flat list of (task and kind, record) that may hold the channels.
-- Errors: DAMAGED, FOREIGNKEY.

--- @include lib_thread
--- @include lib_frames
--- @include lib_checkpoint

local index, data = KEYS[1], KEYS[2]
local ns, id, target = ARGV[1], ARGV[2], ARGV[3]
local limit, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local refresh, default = ARGV[6], ARGV[7]

local meta, problem = open_thread(index, data)
if problem then return problem end
if not meta then return { '' } end

local remaining, open = {}, 0
for i = 8, #ARGV, 2 do
  remaining[ARGV[i + 1]] = pack(ARGV[i])
  open = open + 1
end

-- The entries of the remaining channels, each after its channel: a flat list.
local function wanted_entries(packed)
  local list, pos, expected = {}, 1, 0
  for channel in pairs(remaining) do
    if string.find(packed, channel, 1, true) then expected = expected + 2 end
  end
  while pos <= #packed and #list < expected do
    local first, last, following = frame(packed, pos)
    if string.byte(packed, first) ~= 45 then -- a '-'
      for channel in pairs(remaining) do
        if string.sub(packed, first + 1, first + #channel) == channel then
          list[#list + 1] = channel
          list[#list + 1] = string.sub(packed, first, last)
          break
        end
      end
    end
    pos = following
  end
  return list
end

if target == '1' then
  if id == '' then id = newest_id(index, ns) end
  local header
  if id then
    header, problem = read_header(index, data, ns, id)
    if problem then return problem end
  end
  id = header and links(header) or ''
end

local page, bytes = { '' }, 0
while id ~= '' and open > 0 do
  if #page > limit or bytes >= budget then
    page[1] = id
    break
  end
  local header
  header, problem = read_header(index, data, ns, id)
  if problem then return problem end
  if not header then break end -- pruned
  local parent, packed = links(header)
  local wanted, entries, values, all = wanted_entries(packed), {}, nil, nil
  for i = 2, #wanted, 2 do entries[#entries + 1] = wanted[i] end
  values, problem = blob_values(data, ns, entries)
  if problem then return problem end

  all, problem = pending_writes(index, data, ns, id)
  if problem then return problem end
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
  for i = 1, #entries do
    if values[i] and values[i] ~= '' then
      local channel = wanted[2 * i - 1]
      seeds[#seeds + 1] = channel
      seeds[#seeds + 1] = values[i]
      bytes = bytes + #values[i]
      remaining[channel] = nil
      open = open - 1
    end
  end
  page[#page + 1] = { id, seeds, writes }
  id = parent
end
if refresh == '1' then touch(index, data, meta, default, '') end
return page
