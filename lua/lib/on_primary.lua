-- With require_primary, this comes before scripts that may end without a write (redis_saver/_engine/scripts.py). It is
-- a write that changes nothing, and that a replica refuses. A primary that refuses writes, because it lacks replicas or
-- cannot save, can still be read.
--
-- Never use it before a script that stores values: a full server accepts everything after a script's first write.
local refused = redis.pcall('UNLINK', KEYS[1] .. '.primary')
if type(refused) == 'table' and refused.err
  and not string.find(refused.err, 'NOREPLICAS') and not string.find(refused.err, 'MISCONF') then
  return refused
end
