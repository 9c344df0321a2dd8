-- A page of schedules: whether there are more, then name and value of each.
-- KEYS: stream, meta
-- ARGV: how many, bytes; 'name' and the bounds of names, or 'time', a time and a name that it comes behind, and the time
--       before which it ends
local most, bytes_max = tonumber(ARGV[1]), tonumber(ARGV[2])
local hash, times, in_order = schedule_keys(KEYS[2])
if not is_stream(KEYS[1]) then
  return refuse('no_stream', KEYS[1])
end

-- The first place behind those with this very time whose name is not behind the name.
local function place_behind(at_ms, name)
  local low, high = redis.call('ZCOUNT', times, '-inf', '(' .. at_ms), redis.call('ZCOUNT', times, '-inf', at_ms)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if bytes_less(name, redis.call('ZRANGE', times, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local names = {}
if ARGV[3] == 'name' then
  names = redis.call('ZRANGEBYLEX', in_order, ARGV[4], ARGV[5], 'LIMIT', 0, most + 1)
else
  local first = place_behind(ARGV[4], ARGV[5])
  local before = tonumber(ARGV[6]) or math.huge
  local rows = redis.call('ZRANGE', times, first, first + most, 'WITHSCORES')
  for i = 1, #rows, 2 do
    if tonumber(rows[i + 1]) < before then
      names[#names + 1] = rows[i]
    end
  end
end
local page, size, count = { 'page', 0 }, 0, 0
for _, name in ipairs(names) do
  local value = redis.call('HGET', hash, name)
  size = size + #value
  if count == most or (count > 0 and size > bytes_max) then
    page[2] = 1
    break
  end
  count = count + 1
  page[#page + 1], page[#page + 2] = name, value
end
return page
