-- Which of the entries are pending, and what they are.
-- KEYS: stream, meta
-- ARGV: group, IDs
if not group_of(KEYS[1], ARGV[1]) then
  return refuse('no_group')
end
local policy, found = policy_of(KEYS[2], ARGV[1]), {}
for i = 2, #ARGV do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  local entry = row and redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if entry then
    found[#found + 1] = { entry[1], entry[2], row[2], row[4], 0 }
  end
end
return { 'pending', policy.dead_letter_stream or '', policy.generation, found }
