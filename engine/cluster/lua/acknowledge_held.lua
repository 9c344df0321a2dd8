-- XACK by consumers: what another one holds stays as it is, what was given back has none. The reply: the IDs that were
-- pending and are acknowledged, and those that others hold, each as often as it was named so.
-- KEYS: stream
-- ARGV: group, then by each consumer: its name ('' for any), how many IDs, the lowest, the highest, the IDs
local FEW = 4
local stream, group = KEYS[1], ARGV[1]
local settled, not_held, own, seen, at = {}, {}, {}, {}, 2
while ARGV[at] do
  local consumer, count = ARGV[at], tonumber(ARGV[at + 1])
  -- Many are mostly what it holds between these: looked up at once.
  local rows = (consumer == '' or count < FEW) and {}
    or redis.pcall('XPENDING', stream, group, ARGV[at + 2], ARGV[at + 3], count, consumer)
  for _, row in ipairs(rows.err and {} or rows) do
    own[row[1]] = consumer
  end
  for i = at + 4, at + 3 + count do
    local id = ARGV[i]
    local row = not seen[id] and own[id] ~= consumer and pending_row(stream, group, id)
    if row and consumer ~= '' and is_held_by_another(row, consumer) then
      not_held[#not_held + 1] = id
    elseif not seen[id] and (row or own[id] == consumer) then
      seen[id] = true
      settled[#settled + 1] = id
    end
  end
  at = at + 4 + count
end
for i = 1, #settled, 1000 do
  redis.call('XACK', stream, group, unpack(settled, i, math.min(i + 999, #settled)))
end
return { settled, not_held }
