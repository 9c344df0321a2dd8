-- XDELEX and XACKDEL, for servers without these. The reply is for each ID 1 (deleted), -1 (absent), 2 (kept) or -2 (held
-- by another consumer).
-- KEYS: stream, meta
-- ARGV: keep, delete or acked; the group in which they are acknowledged ('' for none), by which consumer ('' for any), IDs
local stream, refs, acknowledging, consumer = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local DELETED, ABSENT, KEPT, NOT_HELD = 1, -1, 2, -2
local groups = redis.call('EXISTS', stream) == 1 and groups_of(stream) or {}

-- Whether a group has still to read it, or to acknowledge it.
local function is_needed(id)
  for _, group in ipairs(groups) do
    local is_unread = id_less(group['last-delivered-id'], id)
    if is_unread or #redis.call('XPENDING', stream, group['name'], id, id, 1) > 0 then
      return true
    end
  end
  return false
end

local results, going = {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local row = consumer ~= '' and pending_row(stream, acknowledging, id)
  if row and is_held_by_another(row, consumer) then
    results[i - 3] = NOT_HELD
  elseif acknowledging ~= '' and redis.call('XACK', stream, acknowledging, id) == 0 then
    results[i - 3] = ABSENT
  elseif refs == 'acked' and is_needed(id) then
    results[i - 3] = KEPT
  else
    going[#going + 1] = id
  end
end
local gone = delete(stream, KEYS[2], going)
for i = 4, #ARGV do
  local id = ARGV[i]
  if not results[i - 3] then
    -- What was acknowledged counts as deleted, also where its entry had gone before.
    results[i - 3] = (gone[id] or acknowledging ~= '') and DELETED or ABSENT
    gone[id] = nil
    for _, group in ipairs(refs == 'delete' and groups or {}) do
      redis.call('XACK', stream, group['name'], id)
    end
  end
end
return results
