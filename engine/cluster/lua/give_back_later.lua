-- Give entries of a group back: at once, or after a delay. The reply is for each whether it was done (1), it is not
-- pending (0), or not this consumer's (-1).
-- KEYS: stream, meta
-- ARGV: group, the delivery count ('less' by one, the 'same', or a number), whether entries that are not pending are
--       given back too, delay (ms), their consumer ('' for any), IDs
local stream, group, count, delay_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4])
local is_forced, consumer = ARGV[3] == '1', ARGV[5]
redis.call('XPENDING', stream, group)

-- Nothing where it stays as it is, which may be more than a number of Lua's.
local function count_words(row)
  if count == 'same' and row then
    return
  end
  local times = row and row[4] or 0
  return 'RETRYCOUNT', tonumber(count) and count or times < 2 ^ 53 and math.max(0, times - 1) or '9223372036854775807'
end

local outcomes = {}
for i = 6, #ARGV do
  local id, outcome = ARGV[i], 0
  local row = pending_row(stream, group, id)
  if row and not is_held_by(row, consumer) then
    outcome = -1
  elseif row or is_forced then
    local owner, time_ms = RELEASED, 0
    if delay_ms > 0 then
      owner, time_ms = DEFERRED, string.format('%.0f', clock_ms())
      redis.call('ZADD', beside(KEYS[2], 'd'), string.format('%.0f', clock_ms() + delay_ms), id .. ' ' .. group)
    end
    local words = { 'XCLAIM', stream, group, owner, 0, id, 'TIME', time_ms, 'JUSTID', count_words(row) }
    if is_forced then
      words[#words + 1] = 'FORCE'
    end
    outcome = #redis.call(unpack(words))
  end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
