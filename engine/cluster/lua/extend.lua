-- Start the idle time of a consumer's entries anew; what was released is its own again. The reply: the IDs with which it
-- was done, and those that are pending and not this consumer's.
-- KEYS: stream
-- ARGV: group, consumer, IDs
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
redis.call('XPENDING', stream, group)
local extended, not_held = {}, {}
for i = 3, #ARGV do
  local row = pending_row(stream, group, ARGV[i])
  if row and (row[2] == RELEASED or is_held_by(row, consumer)) then
    redis.call('XCLAIM', stream, group, consumer, 0, ARGV[i], 'JUSTID')
    extended[#extended + 1] = ARGV[i]
  elseif row then
    not_held[#not_held + 1] = ARGV[i]
  end
end
return { extended, not_held }
