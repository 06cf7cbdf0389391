-- Included by the scripts that delete or replace a thread, after lib/may_write.

-- Ends the ownership, so that the owner's next write is refused, unless the writer is the owner.
local function end_ownership()
  if string.sub(writer, 1, 1) == ' ' then
    redis.call('UNLINK', owner, (string.gsub(owner, 'owner$', 'waiters')))
  end
end
