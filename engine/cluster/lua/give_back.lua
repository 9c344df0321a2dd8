-- Release entries that a consumer holds, a delivery less. What others have claimed stays theirs.
-- KEYS: stream
-- ARGV: group, consumer, IDs
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local released = 0
for i = 3, #ARGV do
  local row = redis.pcall('XPENDING', stream, group, ARGV[i], ARGV[i], 1, consumer)
  if row.err then
    return 0
  end
  row = row[1]
  if row then
    local count = row[4] < 2 ^ 53 and math.max(0, row[4] - 1) or '9223372036854775807'
    redis.call('XCLAIM', stream, group, 'weir:released', 0, row[1], 'TIME', 0, 'RETRYCOUNT', count, 'JUSTID')
    released = released + 1
  end
end
return released
