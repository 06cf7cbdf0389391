-- Shared by the scripts (included): byte strings packed as "<length>:<bytes>", as in redis_saver/_storage/framing.py.

local reading = 'a stored record' -- named in the error if frames cannot be read

-- Raises an error, without control characters: some servers end a reply at a line break in it, or at a zero byte.
local function stop(text)
  error((string.gsub(text, '%c', '?')))
end

local function damaged()
  stop('DAMAGED a part cannot be read: ' .. reading)
end

-- Returns (first, last, next): the positions of the bytes of the frame at pos, and of the next frame.
local function frame(packed, pos)
  local _, colon, length = string.find(packed, '^(%d+):', pos)
  if not colon or colon + length > #packed then damaged() end
  return colon + 1, colon + length, colon + length + 1
end

-- Returns the position after n frames.
local function skip(packed, pos, n)
  for _ = 1, n do pos = select(3, frame(packed, pos)) end
  return pos
end

local function pack(bytes)
  return #bytes .. ':' .. bytes
end

-- Returns every frame of packed as a list of strings.
local function unpack_frames(packed)
  local list, pos = {}, 1
  while pos <= #packed do
    local first, last, following = frame(packed, pos)
    list[#list + 1] = string.sub(packed, first, last)
    pos = following
  end
  return list
end
