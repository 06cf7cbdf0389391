-- Shared by the store's scripts (included): reads that restart TTLs.

-- Takes over an announcement: the directory's token, and the deadline of its entry ('0': none).
local function take_announcement(state, token, announced)
  if token == '' or tonumber(token) <= state.token then return end
  state.token = tonumber(token)
  if tonumber(announced) == 0 then
    state.announced = 0
  elseif state.announced > 0 then
    state.announced = math.max(state.announced, tonumber(announced))
  end
end

-- Restarts the TTLs of items. Returns nil; or the TTL for which the partition has to be announced first, and nothing
-- was done.
local function refresh(
  items, order, expiring, namespaces, vectors, retired, state, now, token, announced, fields, records)
  local scores, longest = {}, 0
  for i = 1, #fields do
    local _, _, ttl = head_of(records[i] or '')
    if ttl and ttl ~= '0' then
      scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', now + ttl), fields[i]
      longest = math.max(longest, tonumber(ttl))
    end
  end
  if not scores[1] then return nil end
  take_announcement(state, token, announced)
  if state.announced > 0 and now + longest + SKEW > state.announced then return string.format('%.0f', longest) end
  redis.call('HDEL', items, '') -- removes nothing; after it a full server accepts the other writes of a read
  redis.call('ZADD', expiring, unpack(scores))
  commit(items, order, expiring, namespaces, vectors, retired, state, {})
  return nil
end
