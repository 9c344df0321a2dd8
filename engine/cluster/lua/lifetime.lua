-- PEXPIRE, PEXPIREAT or PERSIST of a stream. The reply is 1 where its lifetime was changed, and where that is over how
-- many entries for later have gone with it.
-- KEYS: stream, meta
-- ARGV: the command, its options
local changed = is_stream(KEYS[1]) and redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2)) or 0
return { changed, changed == 1 and not is_stream(KEYS[1]) and drop_scheduled(KEYS[2]) or 0 }
