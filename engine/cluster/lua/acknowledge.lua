-- XACK that says which of the IDs were pending, with this consumer.
-- KEYS: stream
-- ARGV: group, their consumer ('' for any), IDs
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local found = {}
for i = 3, #ARGV do
  local row = consumer ~= '' and pending_row(stream, group, ARGV[i])
  if (consumer == '' or (row and is_held_by(row, consumer))) and redis.call('XACK', stream, group, ARGV[i]) == 1 then
    found[#found + 1] = ARGV[i]
  end
end
return found
