-- Shared by the scripts (included): the owner of a thread, and its writers.

-- Returns the parts of an owner key's content (take_ownership.lua): token, end of the lease (milliseconds, or 0 without
-- a lease), start (microseconds), run, the last owner's run, description. Returns nil if there is no owner, or it cannot
-- be read.
local function owner_of(record)
  return string.match(record or '', '^(%d+%-%x+) (%d+) (%d+) (%S+) (%S+) (.*)$')
end

-- Returns the server's time in milliseconds.
local function now_in_milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Starts a new lease for an owner. Returns the new record.
-- record: the content of the key.
-- lease, kept: milliseconds, as in take_ownership.lua.
local function renewed(owner, record, lease, kept)
  local token, _, since, run, before, by = owner_of(record)
  local until_then = lease > 0 and now_in_milliseconds() + lease or 0
  local new = string.format('%s %.0f %s %s %s %s', token, until_then, since, run, before, by)
  redis.call('SET', owner, new, 'PX', string.format('%.0f', lease + kept))
  return new
end

-- Returns the error reply to a writer who does not own the thread, or nil.
-- token: the writer's token, or ''.
-- is_required: '!' to refuse writes without a token while somebody owns the thread.
local function refused_writer(owner, token, is_required)
  if token == '' and is_required ~= '!' then return nil end
  local held, until_then, since, _, _, by = owner_of(redis.call('GET', owner))
  if token ~= '' and token == held then return nil end
  if token == '' and (not held or tonumber(until_then) <= now_in_milliseconds()) then return nil end
  return redis.error_reply('NOTOWNER ' .. (since or '0') .. ' ' .. string.gsub(by or '', '%c', '?'))
end

-- Returns the error reply to a checkpoint whose parent is not the newest of its namespace, or nil. It accepts a
-- checkpoint that is already stored.
-- checkpoint: its member of the index.
-- parent: its parent's id, escaped, or ''.
local function refused_parent(index, checkpoint, parent)
  local ns = string.sub(checkpoint, 1, (string.find(checkpoint, '%z')))
  local newest = redis.call('ZREVRANGEBYLEX', index, '(' .. string.sub(ns, 1, -2) .. '\1', '[' .. ns, 'LIMIT', 0, 1)[1]
  if not newest or newest == ns .. parent or redis.call('ZSCORE', index, checkpoint) then return nil end
  return redis.error_reply('STALEPARENT ' .. string.gsub(string.sub(newest, #ns + 1, 200), '[^%w%-_.:]', ''))
end
