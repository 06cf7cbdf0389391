-- Reads a page of a partition's items, newest first.
--
-- KEYS[1] items       hash        <prefix>:store:{<partition>}:items
-- KEYS[2] order       sorted set  <prefix>:store:{<partition>}:order
-- KEYS[3] expiring    sorted set  <prefix>:store:{<partition>}:expiring
-- KEYS[4] namespaces  hash        <prefix>:store:{<partition>}:namespaces
-- KEYS[5] vectors     hash        <prefix>:store:{<partition>}:vectors
-- KEYS[6] retired     string      <prefix>:store:{<partition>}:retired
-- ARGV[1] token       token of an announcement of the partition in the directory, or ''
-- ARGV[2] announced   deadline of its entry in milliseconds; '0' for none
-- ARGV[3] refresh     '1' to restart the TTLs of these items, else '0'
-- ARGV[4] prefix      beginning of the fields: the labels after the partition's two
-- ARGV[5] below       version below which to continue, '' to begin with the newest
-- ARGV[6] offset      number of items to skip
-- ARGV[7] limit       maximum number of items to return, up to 1,000
-- Returns {token, below, passed, field, record, ...}
--   token   the partition's token
--   below   the version below which to continue, '' if the page is complete
--   passed  the number of skipped items
--   record  the record of an item
-- Or returns a code, alone or first in a list
--   MORE           1  more has expired than one call removes: call again
--   NOT_ANNOUNCED  2  (token, ttl) announce the partition for this TTL, with a greater token
--   DOCUMENTED     7  the items have documents: read without a refresh, then refresh with get_items
-- Errors: PARTITION, UNSUPPORTED.
-- Rules: reads.

local items, order, expiring, namespaces, vectors, retired = unpack(KEYS)
local MORE, NOT_ANNOUNCED, DOCUMENTED = 1, 2, 7
local prefix, below, offset, limit = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local WALKED, BYTES = 5000, 1000000 -- maximum number of items that a call looks at, and of bytes of a reply
local STEP = math.min(1000, limit + 50) -- number of items of one ZREVRANGEBYSCORE

--- @include lib/refresh
--- @include lib/documents

local nothing = { '0', '', 0 }
local state, reply, _, now = open_swept(MORE, nothing)
if not state then return reply end
local token = text_of(state.token)

-- The page: fields, versions, and the version below which to continue.
local fields, versions, passed, next_below = {}, {}, 0, ''
if prefix == '' and below == '' then
  local last = text_of(offset + limit - 1)
  local page = limit > 0 and redis.call('ZREVRANGE', order, ARGV[6], last, 'WITHSCORES') or {}
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
  if documents_of(state) then return DOCUMENTED end
  records = redis.call('HMGET', items, unpack(fields))
  local wanted = refresh(state, now, ARGV[1], ARGV[2], fields, records)
  if wanted then return { NOT_ANNOUNCED, token, wanted } end
end

local page, bytes = { token, next_below, passed }, 0
for i = 1, #fields do
  local record = records[i] or redis.call('HGET', items, fields[i])
  if not record then return redis.error_reply('PARTITION a record is gone') end
  page[#page + 1], page[#page + 2] = fields[i], record
  bytes = bytes + #fields[i] + #record
  if bytes > BYTES and i < #fields then
    page[2] = versions[i]
    break
  end
end
return page
