-- Which of the entries are pending, and what they are; and which are not this consumer's.
-- KEYS: stream, meta
-- ARGV: group, their consumer ('' for any), IDs
if not group_of(KEYS[1], ARGV[1]) then
  return refuse('no_group')
end
local policy, found, not_held = policy_of(KEYS[2], ARGV[1]), {}, {}
for i = 3, #ARGV do
  local row = pending_row(KEYS[1], ARGV[1], ARGV[i])
  local is_held = row and is_held_by(row, ARGV[2])
  local entry = is_held and redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if entry then
    found[#found + 1] = { entry[1], entry[2], row[2], row[4], 0 }
  elseif row and not is_held then
    not_held[#not_held + 1] = ARGV[i]
  end
end
return { 'pending', policy.dead_letter_stream or '', policy.generation, found, not_held }
