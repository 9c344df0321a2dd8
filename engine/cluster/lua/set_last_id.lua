-- XSETID. What was removed above the new last ID is no gap for readers of what gets IDs below it.
-- KEYS: stream, meta
-- ARGV: the ID, the command's options
local info = find(KEYS[1])
local mark = info and redis.call('HGET', KEYS[2], 'c')
if mark then
  return refuse_closed(KEYS[1], KEYS[2], info, mark)
end
local before = info and removed_upto(info, metadata(KEYS[2], 'r', 'b'))
local done = redis.pcall('XSETID', KEYS[1], unpack(ARGV))
if done.err then
  return done
end
local upto = id_less(ARGV[1], before) and ARGV[1] or before
redis.call('HSET', KEYS[2], 'r', upto, 'b', gone(find(KEYS[1])))
return { 'done' }
