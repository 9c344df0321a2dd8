-- XGROUP SETID, also of `entries_read` alone, with changes of the policy.
-- KEYS: stream, meta
-- ARGV: group, start ('' for none), entries_read ('' for none), policy
local stream, group, start, entries_read = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local info = find(stream)
local state = info and group_of(stream, group)
if not state then
  if info then
    return refuse('no_group_for_key', stream, group)
  end
  return refuse('no_stream_of_group', stream)
end
if start ~= '' or entries_read ~= '' then
  local words = { 'XGROUP', 'SETID', stream, group, start ~= '' and start or state['last-delivered-id'] }
  if entries_read ~= '' then
    words[#words + 1], words[#words + 2] = 'ENTRIESREAD', within(info, entries_read)
  end
  local moved = redis.pcall(unpack(words))
  if moved.err then
    return moved
  end
end
local was_paused = policy_of(KEYS[2], group).paused ~= nil
local is_paused = set_policy(KEYS[2], group, 4, false).paused
if is_paused ~= nil and is_paused ~= was_paused then
  -- Readers at all gateways hear of it.
  wake(stream, info['last-generated-id'])
end
return { 'done' }
