-- XDEL of a list of IDs. removed_upto moves where the first entry goes. Returns those that were there, as a set, and
-- their number.
local function delete(stream, meta, ids)
  local removed, gone = {}, {}
  local info = find(stream)
  if not info or info['length'] == 0 then
    return gone, 0
  end
  for _, id in ipairs(ids) do
    if redis.call('XDEL', stream, id) == 1 then
      removed[#removed + 1] = id
      gone[id] = true
    end
  end
  if #removed == 0 then
    return gone, 0
  end
  local first, highest = first_id(stream), nil
  for _, id in ipairs(removed) do
    local is_before = not first or id_less(id, first)
    -- Behind the first entry that went nothing was live; without that no smaller one has gone.
    if is_before and first ~= info['first-entry'][1] and (not highest or id_less(highest, id)) then
      highest = id
    end
  end
  note_removal(meta, state_of(meta, info), #removed, highest)
  return gone, #removed
end
