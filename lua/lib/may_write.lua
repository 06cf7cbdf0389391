-- Included first by the scripts with the rule `owned`: checks that the writer may write the thread.
--
-- Such a script takes a last argument, `writer`. If it is '', nothing is checked. Else the script also takes a last
-- key, `owner`. `writer` consists of the writer's token, which may be empty, and a space. `!` follows if it has no
-- token and the saver requires one. If the parent must be the newest checkpoint, the checkpoint's member of the index
-- and the parent's escaped id follow. For the thread's owner this costs one command.

--- @include lib/owner

local writer, owner, checks_parent = ARGV[#ARGV], nil, false
ARGV[#ARGV] = nil
if writer ~= '' then owner, KEYS[#KEYS] = KEYS[#KEYS], nil end
if owner and writer ~= ' ' and string.sub(redis.call('GET', owner) or '', 1, #writer) ~= writer then
  local token, is_required, rest = string.match(writer, '^(%S*) (!?)(.*)$')
  if token ~= '' or is_required == '!' then
    local held, until_then, since, _, _, by = owner_of(redis.call('GET', owner))
    local is_free = token == '' and (not held or tonumber(until_then) <= now_in_milliseconds())
    if token ~= held and not is_free then
      return redis.error_reply('NOTOWNER ' .. (since or '0') .. ' ' .. string.gsub(by or '', '%c', '?'))
    end
  end
  local checkpoint, parent = string.match(rest, '^(c[^%z]*%z[^%z]*%z)(.*)$')
  if checkpoint then -- refuse a checkpoint whose parent is not the newest of its namespace, unless it is already stored
    local index, ns = KEYS[1], string.sub(checkpoint, 1, (string.find(checkpoint, '%z')))
    local newest = redis.call('ZREVRANGEBYLEX', index, '(' .. string.sub(ns, 1, -2) .. '\1', '[' .. ns, 'LIMIT', 0, 1)[1]
    if newest and newest ~= ns .. parent and not redis.call('ZSCORE', index, checkpoint) then
      return redis.error_reply('STALEPARENT ' .. string.gsub(string.sub(newest, #ns + 1, 200), '[^%w%-_.:]', ''))
    end
    checks_parent = true
  end
end
