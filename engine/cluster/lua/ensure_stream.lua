-- Make a stream, or change its retention and lifetime.
-- KEYS: stream, meta
-- ARGV: generation, mkstream, what it has to be ('' for anything), command of the lifetime ('' for none) and its
--       time in ms, changes of the retention
local stream, meta = KEYS[1], KEYS[2]
local info = find(stream)
if not info and ARGV[2] == '0' then
  return refuse('no_stream', stream)
end
if ARGV[3] ~= '' and ARGV[3] ~= described(stream, meta, info) then
  return refuse('stream_changed')
end
local at_ms = tonumber(ARGV[5])
if at_ms then
  at_ms = ARGV[4] == 'PEXPIRE' and clock_ms() + at_ms or at_ms
  if at_ms <= clock_ms() then
    return refuse('lifetime_over')
  end
end
if not info then
  make_stream(stream, ARGV[1], meta)
end
-- A write in any case: WAIT behind it then covers that of the one that did it before.
redis.call('HSET', meta, 'g', metadata(meta, 'g').g or ARGV[1])
set_retention(meta, 6)
if ARGV[4] == 'PERSIST' then
  redis.call('PERSIST', stream)
elseif at_ms then
  redis.call('PEXPIREAT', stream, string.format('%.0f', at_ms))
end
return { 'done', info and 0 or 1 }
