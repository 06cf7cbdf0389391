-- Reads a page of a partition's items, newest first. Of a page that the caller knows it answers only what is new.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] token       of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   until when the directory keeps it, in milliseconds; '0': for ever
-- ARGV[3] refresh     1: begin the TTLs of these items anew; 0: no
-- ARGV[4] prefix      with what fields have to begin: labels below the partition's
-- ARGV[5] below       a version, to go on below it; '' from the newest
-- ARGV[6] offset      how many items to pass over
-- ARGV[7] limit       how many to answer, a thousand at the most
-- ARGV[8] known       of the page as the caller knows it: the partition's token, '' if it knows none
-- ARGV[9] count       how many items that had; the next three are their newest and oldest version, and the sum of all
-- ARGV[10] newest     see there
-- ARGV[11] oldest     see there
-- ARGV[12] sum        see there
--
-- Returns {token, below, passed over, then a field, a version and a record of each item}: `below` is where to go on, '' where the page is whole; a record
-- is '' if its version is one that the caller knows. Or a code, alone or first in a list
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for that TTL, with a token above this one
--   SAME           5  the page is what the caller knows
--   DOCUMENTED     7  the items have documents: read without a refresh, then refresh with get_items
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

--- @include lib/partition
--- @include lib/refresh
--- @include lib/documents

local items, order, expiring, namespaces, vectors, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MORE, NOT_ANNOUNCED, SAME, DOCUMENTED = 1, 2, 5, 7
local prefix, below, offset, limit = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local WALKED, BYTES = 5000, 1000000 -- a call looks at so many items, and answers about so many bytes
local STEP = math.min(1000, limit + 50) -- it looks at so many at a time

local state, problem = open_partition(items, order, expiring, namespaces, vectors, redis.call('HGET', items, '@state'))
if problem then return problem end
if not state then return { '0', '', 0 } end
local _, now = clock()
local more = sweep(items, order, expiring, namespaces, vectors, retired, state, now)
if more then return MORE end
if state.count == 0 then return { '0', '', 0 } end
local token = string.format('%.0f', state.token)

-- The page: fields, versions; and where to go on.
local fields, versions, passed, next_below = {}, {}, 0, ''
if prefix == '' and below == '' then
  local page = limit > 0 and redis.call('ZREVRANGE', order, ARGV[6], string.format('%.0f', offset + limit - 1), 'WITHSCORES') or {}
  for i = 1, #page, 2 do fields[#fields + 1], versions[#versions + 1] = page[i], page[i + 1] end
  passed = math.min(offset, state.count)
elseif prefix == '' or state.spaces > 0 then
  local walked, from = 0, below == '' and '+inf' or '(' .. below
  while #fields < limit do
    local some = redis.call('ZREVRANGEBYSCORE', order, from, '-inf', 'WITHSCORES', 'LIMIT', 0, STEP)
    for i = 1, #some, 2 do
      if #fields < limit and string.sub(some[i], 1, #prefix) == prefix then
        if passed < offset then
          passed = passed + 1
        else
          fields[#fields + 1], versions[#versions + 1] = some[i], some[i + 1]
        end
      end
    end
    walked = walked + #some / 2
    if #some < 2 * STEP then break end
    from = '(' .. some[#some]
    if walked >= WALKED and #fields < limit then
      next_below = some[#some]
      break
    end
  end
end

local records = {}
if state.ttls > 0 and ARGV[3] == '1' and fields[1] then
  if documents_of(items, state) then return DOCUMENTED end
  records = redis.call('HMGET', items, unpack(fields))
  local wanted = refresh(items, order, expiring, namespaces, vectors, retired, state, now, ARGV[1], ARGV[2], fields, records)
  if wanted then return { NOT_ANNOUNCED, token, wanted } end
end

local is_known, newest, oldest = ARGV[8] == token, 0, 0
if is_known then
  local sum = 0
  newest, oldest = tonumber(ARGV[10]), tonumber(ARGV[11])
  for i = 1, #versions do sum = (sum + versions[i]) % CHECKSUM end
  if #versions == tonumber(ARGV[9]) and next_below == '' and sum == tonumber(ARGV[12]) and
    (#versions == 0 or tonumber(versions[1]) == newest and tonumber(versions[#versions]) == oldest) then
    return SAME
  end
end

local page, bytes = { token, next_below, passed }, 0
for i = 1, #fields do
  local version = tonumber(versions[i])
  local record = ''
  if not is_known or version > newest or version < oldest then
    record = records[i] or redis.call('HGET', items, fields[i])
    if not record or record == '' then return redis.error_reply('PARTITION a record of ' .. items .. ' is gone') end
  end
  page[#page + 1], page[#page + 2], page[#page + 3] = fields[i], versions[i], record
  bytes = bytes + #fields[i] + #record
  if bytes > BYTES and i < #fields then
    page[2] = versions[i]
    break
  end
end
return page
