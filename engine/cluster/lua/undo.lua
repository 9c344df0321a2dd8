-- Undo a delivery of new entries whose reply never left, if nothing else has moved the group since. Else the entries
-- stay with their consumer, a delivery less.
-- KEYS: stream
-- ARGV: group, consumer, where the group was before (an ID, and entries read or -1), where it was then, between which
--       readings of the clock that was (ms), all IDs that were delivered, none with NOACK
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local before, entries_read, after = ARGV[3], ARGV[4], ARGV[5]
local began_ms, ended_ms = tonumber(ARGV[6]), tonumber(ARGV[7])
local FIRST = 8
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
  local from_ms = read_clock_ms()
  local rows = redis.call('XPENDING', stream, group, ARGV[FIRST], ARGV[#ARGV], 2 * total, consumer)
  local upto_ms = read_clock_ms()
  for _, row in ipairs(rows) do
    if named[row[1]] and row[4] == 1 and upto_ms - row[3] >= began_ms and from_ms - row[3] <= ended_ms then
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
  redis.call('XCLAIM', stream, group, consumer, 0, id, 'TIME', began_ms, 'RETRYCOUNT', 0, 'JUSTID')
end
return 0
