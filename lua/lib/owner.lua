-- Shared by the scripts (included): the owner of a thread.

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
