-- Tells how far cold is behind with a thread.
--
-- KEYS[1] dirty      sorted set  <prefix>:{<thread>}:dirty
-- KEYS[2] flush      hash        <prefix>:{<thread>}:flush
--
-- Returns {records, age of the oldest in milliseconds, records that were set aside}.
-- Errors: none of ours.

local dirty, flush = KEYS[1], KEYS[2]

local members = redis.call('ZRANGE', dirty, 0, -1, 'WITHSCORES')
local clock, aside = redis.call('TIME'), 0
for i = 1, #members, 2 do
  if redis.call('HEXISTS', flush, 'x' .. members[i]) == 1 then aside = aside + 1 end
end
local age = members[2] and math.max(0, clock[1] * 1000 + clock[2] / 1000 - members[2] / 1000) or 0
return { #members / 2, math.floor(age), aside }
