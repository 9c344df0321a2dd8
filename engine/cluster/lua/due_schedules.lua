-- What is due of a stream: the time, then name, head and rule of each; of none, after how many ms the next one is, -1 for
-- none.
-- KEYS: stream, meta
local DUE_MAX, DUE_BYTES_MAX = 100, 4194304
local hash, times = schedule_keys(KEYS[2])
if not is_stream(KEYS[1]) then
  return -1
end
local now = clock_ms()
local names = redis.call('ZRANGEBYSCORE', times, '-inf', string.format('%.0f', now), 'LIMIT', 0, DUE_MAX)
if #names == 0 then
  return next_schedule(KEYS[2]) or -1
end
local rows, size = { now }, 0
for _, name in ipairs(names) do
  size = size + redis.call('HSTRLEN', hash, name)
  if #rows > 1 and size > DUE_BYTES_MAX then
    break
  end
  local one = find_schedule(KEYS[2], name)
  rows[#rows + 1], rows[#rows + 2], rows[#rows + 3] = name, one.head, one.rule
end
return rows
