-- XTRIM. What it asks: maxlen or minid or age_ms, approx, limit, count_pending, dry_run, guard.
--
-- Redis does not say which entries a trim removed, and removed_upto is the highest of them. So nothing is left
-- to Redis's nodes: an approximate trim removes whole nodes of 100 entries, which Redis and Weir have of small ones.

-- Entries of a node, and what retention leaves.
local SLACK = 100
-- Where Redis must count: it has no entry by its number.
local WALKED_MAX = 20000
local PAGE = 100
local PENDING_PAGE = 1000

-- The ID of the nth entry, nil where it would take too long to find.
local function id_at(stream, length, n)
  local command, start, stop = 'XRANGE', '-', '+'
  if n > length / 2 then
    command, start, stop, n = 'XREVRANGE', '+', '-', length - n + 1
  end
  if n > WALKED_MAX then
    return nil
  end
  while true do
    local page = redis.call(command, stream, start, stop, 'COUNT', math.min(n, PAGE))
    if n <= #page then
      return page[n][1]
    end
    n = n - #page
    start = '(' .. page[#page][1]
  end
end

-- The number of entries up to an ID, nil where it would take too long to count.
local function count_upto(stream, id)
  local count, start = 0, '-'
  while count <= WALKED_MAX do
    local page = redis.call('XRANGE', stream, start, id, 'COUNT', PAGE)
    count = count + #page
    if #page < PAGE then
      return count
    end
    start = id_after(page[PAGE][1])
    if not start then
      return count
    end
  end
  return nil
end

local function groups_of(stream)
  local groups = redis.call('XINFO', 'GROUPS', stream)
  for i, row in ipairs(groups) do
    groups[i] = named(row)
  end
  return groups
end

-- The lowest ID that some group has still to read or to acknowledge, nil for none.
local function needed_from(stream)
  local needed
  for _, group in ipairs(groups_of(stream)) do
    local from = id_after(group['last-delivered-id'])
    if tonumber(group['pending']) > 0 then
      local first = redis.call('XPENDING', stream, group['name'])[2]
      if not from or id_less(first, from) then
        from = first
      end
    end
    if from and (not needed or id_less(from, needed)) then
      needed = from
    end
  end
  return needed
end

-- Pending entries, over all groups, that still have their entry, from the first one up to `highest`.
local function pending_upto(stream, info, highest)
  local first = info['first-entry'][1]
  local holes_upto = info['max-deleted-entry-id']
  local found, looked_at = 0, 0
  for _, group in ipairs(groups_of(stream)) do
    local start = first
    while start do
      local page = redis.call('XPENDING', stream, group['name'], start, highest, PENDING_PAGE)
      for _, row in ipairs(page) do
        local there = id_less(holes_upto, row[1]) or looked_at >= 10000
        if not there then
          looked_at = looked_at + 1
          there = #redis.call('XRANGE', stream, row[1], row[1]) > 0
        end
        found = found + (there and 1 or 0)
      end
      start = #page == PENDING_PAGE and id_after(page[PENDING_PAGE][1]) or nil
    end
  end
  return found
end

-- How many entries up to the end of the first node there are; what went before were whole ones.
local function first_node(info)
  return SLACK - gone(info) % SLACK
end

-- How many entries an approximate trim may remove.
local function most(asked)
  return asked.limit and asked.limit > 0 and asked.limit or math.huge
end

-- How many a trim by length removes. The last node is as long as the stream is.
local function excess(asked, info)
  local over = info['length'] - asked.maxlen
  if not asked.approx or over <= 0 then
    return over
  end
  over = math.min(over, most(asked))
  if over == info['length'] then
    return over
  end
  return math.max(0, over - (over - first_node(info)) % SLACK)
end

-- The last of all entries below an ID, nil for none.
local function last_below(stream, id)
  local row = redis.call('XREVRANGE', stream, '(' .. id, '-', 'COUNT', 1)[1]
  return row and row[1] or nil
end

-- The same of those in whole nodes, as many as it may be.
local function last_of_nodes_below(stream, info, id, asked)
  if info['length'] <= most(asked) and id_less(last_live_id(info), id) then
    return last_live_id(info)
  end
  local highest, found, start, count = nil, 0, '-', first_node(info)
  while found + count <= most(asked) do
    local page = redis.call('XRANGE', stream, start, '(' .. id, 'COUNT', count)
    if #page < count then
      break
    end
    found, highest, count = found + count, page[count][1], SLACK
    start = '(' .. highest
  end
  return highest
end

-- The highest ID that a trim by ID removes, nil for none.
local function highest_below(stream, info, asked)
  if asked.minid == '0-0' then
    return nil
  elseif asked.approx then
    return last_of_nodes_below(stream, info, asked.minid, asked)
  end
  return last_below(stream, asked.minid)
end

-- How many it removes (`true` for some, where only a dry run must know), and the highest ID of them.
-- nil: it cannot be known in time.
local function plan_trim(stream, asked, info)
  if asked.maxlen then
    local over = excess(asked, info)
    if over <= 0 then
      return 0
    end
    local highest = id_at(stream, info['length'], over)
    return highest and over, highest
  end
  local highest = highest_below(stream, info, asked)
  if not highest then
    return 0
  end
  -- Only a dry run must know before it removes.
  return asked.dry_run and count_upto(stream, highest) or not asked.dry_run, highest
end

-- Trim by length without a look at what goes, but for the last of it.
local function cut_to(stream, length, over)
  redis.call('XTRIM', stream, 'MAXLEN', '=', length - over + 1)
  local highest = first_id(stream)
  redis.call('XTRIM', stream, 'MAXLEN', '=', length - over)
  return over, highest
end

-- Remove up to `highest`, all of it.
local function cut_upto(stream, highest)
  local beyond = id_after(highest)
  if beyond then
    return redis.call('XTRIM', stream, 'MINID', '=', beyond)
  end
  return redis.call('XTRIM', stream, 'MAXLEN', '=', 0)
end

local function trim_unseen(stream, asked, info)
  if asked.maxlen then
    local over = excess(asked, info)
    if over <= 0 then
      return 0
    end
    return cut_to(stream, info['length'], over)
  end
  local highest = highest_below(stream, info, asked)
  if not highest then
    return 0
  end
  return cut_upto(stream, highest), highest
end

-- Whether it must know what goes before it removes. Pending entries outlive their entry, so they can be counted
-- afterwards, where no entry among those was deleted before.
local function must_plan(asked, info)
  local first = info['first-entry']
  local has_holes = first and not id_less(info['max-deleted-entry-id'], first[1])
  return asked.dry_run or asked.guard or (asked.count_pending and has_holes)
end

-- Whether what it must know could not be known in time, of a stream that has got `more` entries.
local function is_unplannable(asked, info, more)
  local length = info['length'] + more
  return asked.maxlen and must_plan(asked, info)
    and math.min(length - asked.maxlen, asked.maxlen) > WALKED_MAX
end

-- Returns a refusal, or nil, how many were removed, the first ID kept, and how many pending entries are affected.
local function trim(stream, meta, asked)
  local info = find(stream)
  if not info or info['length'] == 0 then
    return nil, 0, '0-0', 0
  end
  if asked.age_ms then
    asked.minid = string.format('%.0f-0', math.max(0, clock_ms() - asked.age_ms))
  end
  local before = state_of(meta, info)
  if not must_plan(asked, info) then
    local removed, highest = trim_unseen(stream, asked, info)
    if removed > 0 then
      note_removal(meta, before, removed, highest)
    end
    local affected = asked.count_pending and removed > 0 and pending_upto(stream, info, highest) or 0
    return nil, removed, first_id(stream) or '0-0', affected
  end
  local removed, highest = plan_trim(stream, asked, info)
  if not removed then
    return refuse('too_long_to_count', WALKED_MAX)
  end
  if removed == 0 then
    return nil, 0, first_id(stream), 0
  end
  if asked.guard then
    local needed = needed_from(stream)
    if needed and not id_less(highest, needed) then
      return refuse('trim_guarded', needed)
    end
  end
  local affected = asked.count_pending and pending_upto(stream, info, highest) or 0
  if asked.dry_run then
    local kept = entries_after(stream, highest, 1)[1]
    return nil, removed, kept and kept[1] or '0-0', affected
  end
  removed = cut_upto(stream, highest)
  note_removal(meta, before, removed, highest)
  return nil, removed, first_id(stream) or '0-0', affected
end
