-- Included by the scripts that delete or replace a thread, behind lib/may_write.

-- Ends the ownership, unless the writer is the owner. Then the owner's next write is refused.
local function end_ownership()
  if string.sub(writer, 1, 1) == ' ' then
    redis.call('UNLINK', owner, (string.gsub(owner, 'owner$', 'waiters')))
  end
end
