-- Say of consumers whose silence counts that they are there.
-- KEYS: stream, meta
-- ARGV: pairs of a group and a consumer
local known = {}
for i = 1, #ARGV, 2 do
  local group, consumer = ARGV[i], ARGV[i + 1]
  if redis.call('HEXISTS', KEYS[2], 'consumer_timeout_ms/' .. group) == 1 then
    if not known[group] then
      known[group] = {}
      local rows = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], group)
      for _, row in ipairs(rows.err and {} or rows) do
        known[group][named(row)['name']] = true
      end
    end
    -- One that was deleted is not made again.
    if known[group][consumer] then
      see(KEYS[1], group, consumer)
    end
  end
end
return 1
