-- XACK that says which of the IDs were pending.
-- KEYS: stream
-- ARGV: group, IDs
local found = {}
for i = 2, #ARGV do
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) == 1 then
    found[#found + 1] = ARGV[i]
  end
end
return found
