-- Put around an owned script that deletes or replaces a thread (see redis_saver/_engine/scripts.py). If its writer does
-- not own the thread, that ends the ownership: the owner's next write is refused. ENDED is the condition in the script's
-- header.
local function change()
--- @script
end
local reply = change()
local failed = type(reply) == 'table' and reply.err
if not failed and string.sub(writer, 1, 1) == ' ' and ENDED then
  redis.call('UNLINK', owner, (string.gsub(owner, 'owner$', 'waiters')))
end
return reply
