-- Put in front of an owned script, if somebody is to be refused (see redis_saver/_engine/scripts.py): who may write.
-- In the common case, a writer that owns the thread, it takes one command and makes no function.
local owner, writer = KEYS[#KEYS], ARGV[#ARGV]
KEYS[#KEYS], ARGV[#ARGV] = nil, nil
if writer ~= ' ' and string.sub(redis.call('GET', owner) or '', 1, #writer) ~= writer then
--- @include lib/owner
local token, is_required, rest = string.match(writer, '^(%S*) (!?)(.*)$')
local checkpoint, parent = string.match(rest, '^(c[^%z]*%z[^%z]*%z)(.*)$')
local refused = refused_writer(owner, token, is_required) or checkpoint and refused_parent(KEYS[1], checkpoint, parent)
if refused then return refused end
--- @waits
end
