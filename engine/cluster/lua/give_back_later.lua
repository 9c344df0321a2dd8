-- Give entries of a group back: at once, or after a delay. The reply is how many.
-- KEYS: stream, meta
-- ARGV: group, the delivery count ('less' by one, the 'same', or a number), whether entries that are not pending are
--       given back too, delay (ms), IDs
local stream, group, count, delay_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4])
local is_forced = ARGV[3] == '1'
redis.call('XPENDING', stream, group)

-- Nothing where it stays as it is, which may be more than a number of Lua's.
local function count_words(row)
  if count == 'same' and row then
    return
  end
  local times = row and row[4] or 0
  return 'RETRYCOUNT', tonumber(count) and count or math.max(0, times - 1)
end

local found = 0
for i = 5, #ARGV do
  local id = ARGV[i]
  local row = pending_row(stream, group, id)
  if row or is_forced then
    local owner, time_ms = RELEASED, 0
    if delay_ms > 0 then
      owner, time_ms = DEFERRED, string.format('%.0f', clock_ms())
      redis.call('ZADD', beside(KEYS[2], 'd'), string.format('%.0f', clock_ms() + delay_ms), id .. ' ' .. group)
    end
    local words = { 'XCLAIM', stream, group, owner, 0, id, 'TIME', time_ms, 'JUSTID', count_words(row) }
    if is_forced then
      words[#words + 1] = 'FORCE'
    end
    found = found + #redis.call(unpack(words))
  end
end
return found
