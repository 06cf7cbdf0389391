-- Removes the expired items of a partition, or all. If none is left, the partition then refuses the directory's token.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] token       the directory's token of the partition; '0' for none
-- ARGV[2] what        expired; or all, which also removes a damaged partition
-- Returns {more, gone, left, token}
--   more   1 if more has expired than one call removes
--   gone   the number of removed items
--   left   the number of items that are left
--   token  if nothing is left, the greatest token that is refused and may leave the directory
-- If `more` is a code, nothing was done
--   DOCUMENTED  7  the items have documents: delete them by put_items, which also removes these
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads, confirmed.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local DOCUMENTED = 7
local token, gone, more = tonumber(ARGV[1]), 0, false

--- @include lib/partition
--- @include lib/documents

local state, problem = open_partition(redis.call('HGET', items, '@state'))
if ARGV[2] == 'all' and state and documents_of(state) then return { DOCUMENTED, 0, state.count, '0' } end
if ARGV[2] == 'all' and (state or problem and not string.find(problem.err, '^%-?UNSUPPORTED ')) then
  local _, now = clock()
  gone = redis.call('ZCARD', order) - redis.call('ZCOUNT', expiring, '-inf', text_of(now))
  state = state or { last = 0, token = token }
  state.count = 0
  commit(state, {})
elseif problem then
  return problem
elseif state then
  local _, now = clock()
  more, gone = sweep(state, now)
end
if state and state.count > 0 then return { more and 1 or 0, gone, state.count, '0' } end
local last_token, last_version = string.match(redis.call('GET', retired) or '0 0', '^(%d+) (%d+)$')
if not last_token then return redis.error_reply('PARTITION the key retired cannot be read') end
local refused = text_of(math.max(token, tonumber(last_token)))
if refused ~= '0' then redis.call('SET', retired, refused .. ' ' .. last_version, 'PX', RETIRED) end
return { 0, gone, 0, refused }
