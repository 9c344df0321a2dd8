-- RENAME, RENAMENX or COPY of a stream, with all that Weir keeps beside it: a new generation under its new name.
-- KEYS: stream, meta, answers, order; then those of the target
-- ARGV: generation, the command, its options
if not is_stream(KEYS[1]) then
  return ARGV[2] == 'COPY' and 0 or redis.error_reply('ERR no such key')
end
-- Refused where the target is a key of another type.
redis.call('XLEN', KEYS[5])
local done = redis.pcall(ARGV[2], KEYS[1], KEYS[5], unpack(ARGV, 3))
if type(done) == 'table' and done.err then
  return done
end
if done == 0 or KEYS[1] == KEYS[5] then
  return 0
end
-- What the target had is overwritten, and not removed before: see answers.lua.
for i = 2, 4 do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    redis.call('DEL', KEYS[i + 4])
  elseif ARGV[2] == 'COPY' then
    redis.call('COPY', KEYS[i], KEYS[i + 4], 'REPLACE')
  else
    redis.call('RENAME', KEYS[i], KEYS[i + 4])
  end
end
redis.call('HSET', KEYS[6], 'g', ARGV[1])
redis.call('HDEL', KEYS[6], 'archived_up_to')
if ARGV[2] == 'COPY' then
  -- A copy is open.
  redis.call('HDEL', KEYS[6], 'c')
end
return 1
