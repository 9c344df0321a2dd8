-- PEXPIRE, PEXPIREAT or PERSIST of a stream. The reply is 1 where its lifetime was changed.
-- KEYS: stream
-- ARGV: the command, its options
return is_stream(KEYS[1]) and redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2)) or 0
