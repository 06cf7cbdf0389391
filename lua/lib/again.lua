-- Shared by the scripts (included): marking everything that hot has as dirty again.

--- @include lib/framing
--- @include lib/write_behind

-- Returns the set of members of regular writes that were filled from cold for tasks that also have special writes. The
-- indexes of these regular writes are unknown, so cold would get them twice.
local function misplaced_writes(index, data)
  local found = {}
  for _, from in ipairs(unpack_frames(redis.call('HGET', data, '@no_task_path') or '')) do
    for _, member in ipairs(redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')) do
      if string.sub(member, -1) ~= '\0' then found[string.match(member, '^.*%z')] = true end
    end
  end
  return found
end

-- Appends the members of all checkpoints, parents before children, then of all writes. It also forgets which checkpoint
-- was flushed last. After a deletion, all writes are included.
local function add_all(index, data, members)
  local misplaced = members[1] == 'd' and {} or misplaced_writes(index, data)
  for _, range in ipairs({ { '[c', '(d' }, { '[w', '(x' } }) do
    for _, member in ipairs(redis.call('ZRANGEBYLEX', index, range[1], range[2])) do
      if not misplaced[string.match(member, '^.*%z')] then members[#members + 1] = member end
      redis.call('HDEL', data, '@flushed_head' .. string.sub(member, 2, (string.find(member, '%z'))))
    end
  end
end

-- Records members again, or for the first time if they are older than the tiers. Nothing is coalesced until cold has
-- them.
local function note_again(index, data, dirty, flush, meta, members)
  if not members[1] then return end
  if members[1] ~= 'd' then
    redis.call('HSET', flush, 'fenced', '1')
    redis.call('PERSIST', flush)
  end
  note(dirty, members)
  if not meta then return end
  local left = redis.call('PTTL', index)
  redis.call('HSET', data, '@deferred_ttl', meta.dirty or left > 0 and left or '')
  redis.call('PERSIST', index)
  redis.call('PERSIST', data)
end

-- Records everything that hot has of a thread, because cold has nothing of it, or checkpoints were coalesced.
local function note_all(index, data, dirty, flush, meta)
  local members = {}
  add_all(index, data, members)
  note_again(index, data, dirty, flush, meta, members)
  if not members[1] then redis.call('HDEL', data, '@deferred_ttl') end
  if redis.call('HEXISTS', data, '@cold_backed') == 0 then
    redis.call('HSET', data, '@cold_backed', '1', '@complete', '1')
  end
end
