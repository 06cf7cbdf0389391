-- Included after lib/may_write by the scripts that delete or replace a thread.

-- Ends the ownership of another owner, whose next write is then refused.
local function end_ownership()
  if string.sub(writer, 1, 1) == ' ' then
    redis.call('UNLINK', owner, (string.gsub(owner, 'owner$', 'waiters')))
  end
end
