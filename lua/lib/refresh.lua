-- Shared by the store's scripts (included): reads that restart TTLs.

--- @include lib/partition

-- Restarts the TTLs of items. If the partition must be announced first, it does nothing and returns the TTL for that.
-- Otherwise it returns nil.
local function refresh(state, now, token, announced, fields, records)
  local scores, longest = {}, 0
  for i = 1, #fields do
    local _, _, ttl = head_of(records[i] or '')
    if ttl and ttl ~= '0' then
      scores[#scores + 1], scores[#scores + 2] = text_of(now + ttl), fields[i]
      longest = math.max(longest, tonumber(ttl))
    end
  end
  if not scores[1] then return nil end
  take_announcement(state, token, announced)
  if state.announced > 0 and now + longest + SKEW > state.announced then return text_of(longest) end
  redis.call('HDEL', items, '') -- removes nothing; after it a full server accepts the other writes of a read
  redis.call('ZADD', expiring, unpack(scores))
  commit(state, {})
end
