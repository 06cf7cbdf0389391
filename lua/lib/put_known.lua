-- Shared by the scripts (included): storing a checkpoint in the common case, and no
-- more. A script includes what all other cases take behind it, as the server makes the functions of a script anew at
-- each call.

--- @include lib/thread
--- @include lib/revise

local FIELDS, SEEN = 13, 5 -- a put's fields begin behind FIELDS of argv; what was found in them behind SEEN of found

-- Opens a thread with all that a put writes, in one call, or in more for thousands of fields. Returns what
-- open_thread does.
-- argv: what put.lua takes.
local function look_up(index, data, argv)
  local count = argv[11] + argv[12] + argv[13]
  local last = FIELDS + math.min(count, 1000)
  local meta, problem, found = open_thread(index, data, argv[1], '@history', unpack(argv, FIELDS + 1, last))
  for from = 1001, meta and count or 0, 1000 do
    local some = redis.call('HMGET', data, unpack(argv, FIELDS + from, FIELDS + math.min(from + 999, count)))
    for i = 1, #some do found[SEEN + from + i - 1] = some[i] end
  end
  return meta, problem, found
end

-- Counts the checkpoints of the namespace that was just put to. Returns the number to keep if there are many more and
-- the caller is to prune, else 0.
-- A prune that fails, or has to keep more, is asked for again once the namespace has grown by a quarter of what is too
-- much, or by `slack`.
-- argv: what put.lua takes; found: what look_up answered; is_tiered: true if a cold saver gets what is put.
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
  -- A late checkpoint could make up for a removed one in the counts that remembered histories depend on.
  if redis.call('ZLEXCOUNT', index, '(' .. checkpoint, upper) > 0 then
    redis.call('HSET', data, '@rewritten', next_rewrite(data))
  end
  local count, slack = redis.call('ZLEXCOUNT', index, '[c' .. ns, upper), math.max(MIN_SLACK, math.floor(keep / 2))
  if count <= keep + slack then return 0 end
  local asked_at, has_cold = unpack(redis.call('HMGET', data, '@over_at' .. ns, '@cold_backed'), 1, 2)
  -- A saver that writes past the tiers does not see what cold lacks.
  if is_tiered ~= (has_cold and true or false) then return 0 end
  local last = count > keep + slack + 1 and tonumber(asked_at or '')
  if last and last >= count then -- what the prune had to keep is still more than `slack`
    redis.call('HSET', data, '@over_at' .. ns, count - 1)
    return 0
  end
  if last and count < last + math.max(slack, math.floor((last - keep) / 4)) then return 0 end
  redis.call('HSET', data, '@over_at' .. ns, count)
  return keep
end

-- Stores a new checkpoint with new values, if the thread has the tag that the caller names. Returns the thread's tag
-- from now on if it did, else false.
--
-- The proof. The caller relies on what it put or read until the put that set this tag. Whatever removes or replaces
-- something drops the tag in its first command, or sets another one; so nothing of that is gone. The tag is set in the
-- same HSET as what it stands for; so a server that lost its newest writes (by a failover, or as its file was cut off)
-- has all of it, or an earlier tag.
-- argv: what put.lua takes; meta, found: what look_up answered; is_home: true if cold has all else of the thread.
local function put_known(index, data, argv, meta, found, is_home)
  local n, p, q, tag = tonumber(argv[11]), tonumber(argv[12]), tonumber(argv[13]), argv[9]
  if not meta or tag == '' or meta.tag ~= tag or found[4] or n + p > 400 then return false end
  for i = 1, n do
    if found[SEEN + i] then return false end
  end
  for i = n + p + 1, n + p + q do
    if found[SEEN + i] then return false end
  end

  local checkpoint, by_age, run, header = argv[1], argv[2], argv[3], argv[4]
  -- The table has room from the start, so that it need not grow.
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
