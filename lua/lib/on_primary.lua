-- Put in front of scripts that may end without a write, with require_primary (see redis_saver/_engine/scripts.py):
-- a write that changes nothing, and that only a primary accepts. A primary that refuses writes, because it lacks
-- replicas or cannot save, may be read.
--
-- Never put it in front of a script that stores values: a full server does not refuse what follows a script's first
-- write.
local refused = redis.pcall('UNLINK', KEYS[1] .. '.primary')
if type(refused) == 'table' and refused.err
  and not string.find(refused.err, 'NOREPLICAS') and not string.find(refused.err, 'MISCONF') then
  return refused
end
