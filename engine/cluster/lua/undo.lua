-- Undo a delivery of new entries whose reply never left, if nothing else has moved the group since. Else the entries
-- stay with their consumer, a delivery less.
-- KEYS: stream
-- ARGV: group, consumer, where the group was before (an ID, and entries read or -1), where it was then, when that was
--       (ms), all IDs that were delivered, none with NOACK
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local before, entries_read, after, delivered_ms = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local FIRST = 7
-- A script's reading of the clock and its commands' may differ that much, in milliseconds.
local CLOCKS_MAX = 5
local ACKS_MAX = 1000

local info = find(stream)
local state = info and group_of(stream, group)
if not state then
  return 0
end

-- Those that are as the delivery left them.
local left, total = {}, #ARGV - FIRST + 1
if total > 0 then
  local named = {}
  for i = FIRST, #ARGV do
    named[ARGV[i]] = true
  end
  for _, row in ipairs(redis.call('XPENDING', stream, group, ARGV[FIRST], ARGV[#ARGV], 2 * total, consumer)) do
    if named[row[1]] and row[4] == 1 and math.abs(clock_ms() - row[3] - delivered_ms) <= CLOCKS_MAX then
      left[#left + 1] = row[1]
    end
  end
end

if #left == total and state['last-delivered-id'] == after then
  for i = 1, total, ACKS_MAX do
    redis.call('XACK', stream, group, unpack(left, i, math.min(total, i + ACKS_MAX - 1)))
  end
  if entries_read ~= '-1' then
    entries_read = within(info, entries_read)
  end
  redis.call('XGROUP', 'SETID', stream, group, before, 'ENTRIESREAD', entries_read)
  return 1
end
for _, id in ipairs(left) do
  redis.call('XCLAIM', stream, group, consumer, 0, id, 'TIME', delivered_ms, 'RETRYCOUNT', 0, 'JUSTID')
end
return 0
