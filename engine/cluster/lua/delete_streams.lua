-- DEL of one stream, with all that Weir keeps beside it. The reply is whether there was one, and how many entries for
-- later have gone with it.
-- KEYS: stream, meta, answers, order
-- ARGV: what it has to be ('' for anything), whether entries for later may go with it
local is_there = is_stream(KEYS[1])
local info = is_there and ARGV[1] ~= '' and find(KEYS[1])
if info and described(KEYS[1], KEYS[2], info) ~= ARGV[1] then
  return refuse('stream_changed')
end
local scheduled = is_there and ARGV[2] == '0' and redis.call('HLEN', beside(KEYS[2], 's')) or 0
if scheduled > 0 then
  return refuse('has_schedules', KEYS[1], scheduled, 'delete')
end
local count = is_there and redis.call('DEL', KEYS[1]) or 0
-- A write in any case: WAIT behind it then covers that of the one that did it before. A full server refuses it first.
redis.pcall('HSET', KEYS[2], 'g', '')
return { 'done', count, forget(unpack(KEYS)) }
