-- Included first by the scripts with the rule `owned`: checks that the writer may write the thread.
--
-- Such a script takes a last argument, `writer`. If it is '', nothing is checked. Else the script also takes a last
-- key, `owner`. `writer` consists of the writer's token, which may be empty, and a space. `!` follows if it has no
-- token and the saver requires one. If the parent must be the newest checkpoint, the checkpoint's member of the index
-- and the parent's escaped id follow. For the thread's owner this costs one command.
local writer, owner, checks_parent = ARGV[#ARGV], nil, false
ARGV[#ARGV] = nil
if writer ~= '' then owner, KEYS[#KEYS] = KEYS[#KEYS], nil end
if owner and writer ~= ' ' and string.sub(redis.call('GET', owner) or '', 1, #writer) ~= writer then
--- @include lib/owner
local token, is_required, rest = string.match(writer, '^(%S*) (!?)(.*)$')
local checkpoint, parent = string.match(rest, '^(c[^%z]*%z[^%z]*%z)(.*)$')
local refused = refused_writer(owner, token, is_required) or checkpoint and refused_parent(KEYS[1], checkpoint, parent)
if refused then return refused end
checks_parent = checkpoint ~= nil
end
