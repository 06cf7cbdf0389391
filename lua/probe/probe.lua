-- Tries what all scripts rely on. It uses two keys like those of an unfinished copy, and removes them.
--
-- KEYS[1] index      sorted set  <prefix>:{<thread>}:index.<token>
-- KEYS[2] data       hash        <prefix>:{<thread>}:data.<token>
-- ARGV[1] scope      'core' for the commands of a saver without tiers and ownership, 'all' for all commands
-- ARGV[2..]          with 'all' up to 4,998 strings, which become the fields of a hash
--
-- Returns {refused, failed, integer, bytes, list}
--   refused  the error reply to the first write, or ''. Then no other writes were tried
--   failed   a text for each thing that did not work
--   the rest are values that the client compares
-- Errors: none of ours.

local index, data = KEYS[1], KEYS[2]
local scope = ARGV[1]
local LIFE = 60000 -- milliseconds
local refused, failed = '', {}

local function text_of(reply)
  if type(reply) ~= 'table' then return tostring(reply) end
  if reply.err or reply.ok then return reply.err or reply.ok end
  local parts = {}
  for i = 1, #reply do parts[i] = text_of(reply[i]) end
  return table.concat(parts, ' ')
end

local function check(name, expected, got)
  if got ~= expected then failed[#failed + 1] = name .. ': ' .. text_of(got) end
end

-- Runs a command, and compares its reply as text, unless `expected` is nil. After an error, later replies follow from
-- it, so only further errors are noted.
local has_error = false
local function try(expected, name, ...)
  local reply = redis.pcall(name, ...)
  local is_error = type(reply) == 'table' and reply.err
  has_error = has_error or is_error
  if is_error or expected and not has_error then check(name, expected, text_of(reply)) end
  return reply
end

-- Runs a command that replies with a score, which scripts use as a number. Servers write it in different ways.
local function try_score(expected, name, ...)
  local reply = try(nil, name, ...)
  local score = reply
  if type(reply) == 'table' then score = reply[2] end -- of the first member
  if not has_error and tonumber(score) ~= expected then check(name, expected, reply) end
end

local function language()
  check('string.format', '9007199254740991 000000000000012 7', string.format('%.0f %015.0f %d', 9007199254740991, 12, 7))
  check('numbers', '3 17 5000 8', text_of({ math.floor(7 / 2) .. '', tonumber('17') .. '', '5' * 1000, math.max(8, '7' + 0) }))
  check('string.match', 'a 2 3', text_of({ string.match('a\0012 3', '^(%a)[^%w]?(%d+) (%d+)$') }))
  check('string.find', '2', text_of(string.find('a\0b', '%z')))
  check('string.gsub', 'x-x', (string.gsub('x\0x', '[^%w]', '-')))
  check('string.byte', '255', text_of(string.byte(string.sub('\0\255', 2, 2))))
  check('unpack', '4 6', text_of({ select('#', unpack({ 1, 2, 3, 4 })), select(2, unpack({ 5, 6 }, 1, 2)) }))
  local now = try(nil, 'TIME')
  if not now.err then check('TIME', 16, #string.format('%.0f', now[1] * 1000000 + now[2])) end
end

local function core_commands()
  try('1', 'HSET', data, 'b', '9007199254740993')
  try('1', 'PEXPIRE', data, LIFE)
  try('1', 'HSET', data, 'a', 2)
  try('9007199254740993 false 2', 'HMGET', data, 'b', 'none', 'a')
  try('2', 'HGET', data, 'a')
  try('16', 'HSTRLEN', data, 'b')
  try('0', 'HEXISTS', data, 'none')
  try('1', 'HDEL', data, 'a')
  try('4', 'ZADD', index, 0, '', 0, 'cb', 0, 'ca', 1764271234567891, 'd')
  try_score(1764271234567891, 'ZSCORE', index, 'd')
  try('1', 'ZREM', index, 'd')
  try('2', 'ZLEXCOUNT', index, '[c', '(d')
  try('cb', 'ZRANGEBYLEX', index, '(ca', '+', 'LIMIT', 0, 1)
  try('cb ca', 'ZREVRANGEBYLEX', index, '(d', '[c')
  local now = redis.call('TIME')
  try('1', 'PEXPIREAT', index, string.format('%.0f', now[1] * 1000 + LIFE))
  local left = try(nil, 'PTTL', index)
  if not has_error then check('PEXPIREAT', true, type(left) == 'number' and left > 0 and left <= 2 * LIFE) end
  try('1', 'PERSIST', index)
  try('OK', 'RENAME', data, index)
  try('1', 'EXISTS', index, data)
end

local function more_commands()
  try('OK', 'SET', data, 'abc', 'PX', LIFE)
  try('abc', 'GET', data)
  try('b', 'GETRANGE', data, 1, 1)
  redis.call('UNLINK', index, data)
  try('3', 'ZADD', index, '1.5', 'a', 2, 'b', 1764271234567891, 'c')
  try('3', 'ZCARD', index)
  try('2', 'ZCOUNT', index, '(1.5', 'inf')
  try_score(1.5, 'ZRANGE', index, 0, 0, 'WITHSCORES')
  try('a', 'ZRANGEBYSCORE', index, '-inf', '(2')
  -- A store reads the versions of items as text.
  try('c 1764271234567891', 'ZREVRANGE', index, 0, 0, 'WITHSCORES')
  try('b 2', 'ZREVRANGEBYSCORE', index, 2, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  try('3', 'ZREMRANGEBYRANK', index, 0, -1)
  try('', 'ZRANDMEMBER', index, 2)
  local fields = #ARGV - 1 - (#ARGV - 1) % 2
  if fields > 0 then try(string.format('%d', math.floor(fields / 2)), 'HSET', data, unpack(ARGV, 2, fields + 1)) end
  try(string.format('%d', math.floor(fields / 2)), 'HLEN', data)
  try(nil, 'HSCAN', data, 0, 'COUNT', 10)
end

local function run(trials)
  local is_run, problem = pcall(trials)
  if not is_run then failed[#failed + 1] = 'script: ' .. text_of(problem) end
end

run(language)
local first = redis.pcall('HSET', data, 'first', 1)
if type(first) == 'table' and first.err then
  refused = first.err
else
  run(core_commands)
  if scope == 'all' then run(more_commands) end
  local removed = redis.pcall('UNLINK', index, data)
  if type(removed) == 'table' and removed.err then failed[#failed + 1] = 'UNLINK: ' .. removed.err end
end
return { refused, failed, 9007199254740992, '\0\255\r\n', { false, 1 } }
