-- XGROUP CREATE, with a policy.
-- KEYS: stream, meta
-- ARGV: generation, group, start, mkstream, entries_read ('' for none), whether one that is there is no error,
--       policy
local stream, group = KEYS[1], ARGV[2]
local info = find(stream)
local words = { 'XGROUP', 'CREATE', stream, group, ARGV[3] }
if ARGV[4] == '1' then
  words[#words + 1] = 'MKSTREAM'
end
if ARGV[5] ~= '' then
  words[#words + 1], words[#words + 2] = 'ENTRIESREAD', within(info, ARGV[5])
end
local made = redis.pcall(unpack(words))
if made.err then
  if ARGV[6] == '1' and string.find(made.err, 'BUSYGROUP', 1, true) == 1 then
    -- A write: WAIT behind it then covers that of the one that made the group.
    redis.call('HSET', KEYS[2], 'g', metadata(KEYS[2], 'g').g or ARGV[1])
    return 0
  end
  return made
end
if not info then
  begin_stream(stream, ARGV[1], KEYS[2])
end
redis.call('HSET', KEYS[2], 'had_group', '1')
-- Another program may have removed a group of that name.
set_policy(KEYS[2], group, 7, true)
return 1
