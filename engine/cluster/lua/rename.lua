-- RENAME, RENAMENX or COPY of a stream, with all that Weir keeps beside it: a new generation under its new name. The reply
-- is 1 where it is done, and how many entries for later have gone with the stream that had the name.
-- KEYS: stream, meta, answers, order; then those of the target
-- ARGV: generation, the command, its options
if not is_stream(KEYS[1]) then
  return ARGV[2] == 'COPY' and { 0, 0 } or redis.error_reply('ERR no such key')
end
-- Refused where the target is a key of another type.
redis.call('XLEN', KEYS[5])
local done = redis.pcall(ARGV[2], KEYS[1], KEYS[5], unpack(ARGV, 3))
if type(done) == 'table' and done.err then
  return done
end
if done == 0 or KEYS[1] == KEYS[5] then
  return { 0, 0 }
end
local dropped = (redis.call('HGET', KEYS[6], 'x') or 0) + count_schedules(KEYS[6])
leave_source(KEYS[5], KEYS[6])
-- What the target had is overwritten, and not removed before: see answers.lua.
local function take_along(from, to)
  local is_there = redis.pcall('EXISTS', from)
  if is_there ~= 1 then
    redis.pcall('DEL', to)
  elseif ARGV[2] == 'COPY' then
    redis.call('COPY', from, to, 'REPLACE')
  else
    redis.call('RENAME', from, to)
  end
end

for _, kind in ipairs(BESIDE) do
  take_along(beside(KEYS[2], kind), beside(KEYS[6], kind))
end
if ARGV[2] == 'COPY' then
  drop_kinds(KEYS[6], SCHEDULES)
else
  for _, kind in ipairs(SCHEDULES) do
    take_along(beside(KEYS[2], kind), beside(KEYS[6], kind))
  end
end
for i = 2, 4 do
  take_along(KEYS[i], KEYS[i + 4])
end
local meta = KEYS[6]
redis.call('HSET', meta, 'g', ARGV[1])
redis.call('HDEL', meta, 'archived_up_to')
local forks = {}
if redis.call('HEXISTS', meta, 'forks') == 1 then
  for _, field in ipairs(redis.call('HKEYS', meta)) do
    forks[#forks + 1] = string.sub(field, 1, 5) == 'fork/' and field or nil
  end
end
if ARGV[2] == 'COPY' then
  -- A copy is open, it is no fork, and has none.
  redis.call('HDEL', meta, 'c', 'x', 'source', 'source_meta', 'origins', 'forks', unpack(forks))
  return { 1, dropped }
end
for _, field in ipairs(forks) do
  redis.call('HSET', redis.call('HGET', meta, field), 'source', KEYS[5], 'source_meta', meta)
end
local known = metadata(meta, 'source_meta')
if known.source_meta then
  redis.call('HDEL', known.source_meta, 'fork/' .. KEYS[1])
  redis.call('HSET', known.source_meta, 'fork/' .. KEYS[5], meta)
end
return { 1, dropped }
