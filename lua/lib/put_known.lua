-- Shared by the scripts (included): storing a checkpoint in the common case. The code for all other cases is included
-- after it, because the server creates a script's functions anew at each call.

--- @include lib/thread
--- @include lib/revise

-- Offsets: of a put's fields in argv, and of their stored values in found. There, three values of open_thread and three
-- of look_up come first.
local FIELDS, SEEN = 14, 6

-- Opens a thread, checks the data key, and reads the fields that a put writes, in one call per thousand fields. Returns
-- what open_thread does.
-- argv: arguments of put.lua.
local function look_up(index, data, argv)
  local count = argv[11] + argv[12] + argv[13]
  local last = FIELDS + math.min(count, 1000)
  local meta, problem, found = open_thread(index, data, argv[1], '@history', '@key', unpack(argv, FIELDS + 1, last))
  for from = 1001, meta and count or 0, 1000 do
    local some = redis.call('HMGET', data, unpack(argv, FIELDS + from, FIELDS + math.min(from + 999, count)))
    for i = 1, #some do found[SEEN + from + i - 1] = some[i] end
  end
  return meta, problem or check_key(meta, found[6], argv[14]), found
end

-- Counts the checkpoints of the put's namespace. Returns the history limit if the caller must prune, because there are
-- many more. Returns 0 otherwise. If a prune failed, or had to keep more, the next one comes when the namespace has
-- grown by a quarter of the excess, or by `slack`.
-- argv: arguments of put.lua.
-- found: result of look_up.
-- is_tiered: true if cold gets the checkpoint.
local function over_limit(index, data, argv, found, is_tiered)
  local MIN_SLACK = 32 -- checkpoints
  local asked, stored = argv[8], found[5]
  if asked == '-' or asked == '' and not stored then return 0 end
  local default, own = string.match(asked, '^(%d*)/(%w*)$')
  if own and own ~= '' and own ~= stored then
    redis.call('HSET', data, '@history', own)
    stored = own
  end
  local keep = stored or default or ''
  keep = string.find(keep, '^%d%d?%d?%d?$') and tonumber(keep) or 0
  if keep == 0 then return 0 end

  local checkpoint = argv[1]
  local ns = string.sub(checkpoint, 2, (string.find(checkpoint, '%z')))
  local upper = '(c' .. string.sub(ns, 1, -2) .. '\1'
  local count, slack = redis.call('ZLEXCOUNT', index, '[c' .. ns, upper), math.max(MIN_SLACK, math.floor(keep / 2))
  if count <= keep + slack then return 0 end
  local asked_at, has_cold = unpack(redis.call('HMGET', data, '@over_at' .. ns, '@cold_backed'), 1, 2)
  -- A saver without tiers cannot prune a thread of two tiers: it does not see what cold lacks.
  if is_tiered ~= (has_cold and true or false) then return 0 end
  local last = count > keep + slack + 1 and tonumber(asked_at or '')
  if last and last >= count then -- the last prune kept more than `slack`
    redis.call('HSET', data, '@over_at' .. ns, count - 1)
    return 0
  end
  if last and count < last + math.max(slack, math.floor((last - keep) / 4)) then return 0 end
  redis.call('HSET', data, '@over_at' .. ns, count)
  return keep
end

-- Stores a new checkpoint with new values, if the thread has the tag that the caller names. Returns the thread's new
-- tag, or false if nothing was stored.
--
-- Proof: the caller relies on data that it put or read until the put that set this tag. A script that removes or
-- replaces something deletes or replaces the tag in its first command. So none of these data are gone. One HSET writes
-- a tag and everything it proves. So a server that lost its newest writes (failover, truncated file) has the tag with
-- everything it proves, or an earlier tag.
-- argv: arguments of put.lua.
-- meta, found: results of look_up.
-- is_home: true if cold has the rest of the thread.
local function put_known(index, data, argv, meta, found, is_home)
  local n, p, q, tag = tonumber(argv[11]), tonumber(argv[12]), tonumber(argv[13]), argv[9]
  if not meta or tag == '' or not is_tag(meta, tag) or found[4] or n + p > 400 then return false end
  for i = 1, n do
    if found[SEEN + i] then return false end
  end
  for i = n + p + 1, n + p + q do
    if found[SEEN + i] then return false end
  end

  local checkpoint, by_age, run, header = argv[1], argv[2], argv[3], argv[4]
  -- The table has its size from the start, so it need not grow.
  local fields = { '@state', '', checkpoint, header, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
  local last, bytes, values = 4, #header, FIELDS + n + p + q
  for i = 1, n + p do
    if not found[SEEN + i] then
      local value = argv[values + i]
      fields[last + 1], fields[last + 2] = argv[FIELDS + i], value
      last, bytes = last + 2, bytes + #value
    end
  end
  if is_home then
    fields[last + 1], fields[last + 2] = '@cold_backed', '1'
    last = last + 2
  end
  revise(meta)
  meta.bytes, meta.blobs = meta.bytes + bytes, meta.blobs + n
  set_tag(meta, argv[10])
  fields[2] = state_of(meta, meta.tag)
  redis.call('HSET', data, unpack(fields, 1, last))
  if by_age ~= '' then
    redis.call('ZADD', index, 0, checkpoint, 0, by_age, 0, run ~= '' and run or by_age)
  elseif run ~= '' then
    redis.call('ZADD', index, 0, checkpoint, 0, run)
  else
    redis.call('ZADD', index, 0, checkpoint)
  end
  touch(index, data, meta, argv[6], argv[7])
  return meta.tag
end
