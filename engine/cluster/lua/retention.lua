-- Retention: how much of a stream is kept, by the fields of its metadata that have these names.
--
-- Redis does not say how many bytes a stream's entries have. So where `max_bytes` is set, those that were seen are
-- counted in parts: `z` has the last ID and the size of each part; `o` the last ID that was counted, the bytes
-- behind the last part, and how many of these there may be before `z` is looked at. Entries go in whole parts.
-- Deleted ones count until their part goes.
local RETENTION = { 'max_len', 'max_age_ms', 'max_bytes', 'keep_unacknowledged', 'keep_unarchived', 'archived_up_to' }
-- Entries that one script walks over to find the last that may go.
local ENFORCED_MAX = 1000
-- What one script counts, and reads at a time: entries may be large.
local COUNTED_MAX, COUNTED_BYTES_MAX, COUNTED_PAGE = 2000, 1048576, 20
local PARTS, PARTS_MAX = 64, 256
-- What an entry has as JSON beside its ID, and beside each name and value.
local ENTRY_JSON_BYTES, WORD_JSON_BYTES = 20, 3

-- The first ID that must stay, nil for none. No cut changes it, so it is asked for once.
local function kept_from(stream, kept)
  if kept.from == nil then
    local from = kept.keep_unacknowledged and needed_from(stream) or nil
    local unarchived = kept.keep_unarchived and id_after(kept.archived_up_to or '0-0')
    if unarchived and (not from or id_less(unarchived, from)) then
      from = unarchived
    end
    kept.from = from or false
  end
  return kept.from or nil
end

-- Remove what is up to an ID (nil for nothing) and may go. Whether all of that went.
local function cut(stream, meta, kept, highest)
  local wanted, from = highest, highest and kept_from(stream, kept)
  if from and not id_less(highest, from) then
    highest = from ~= '0-0' and last_below(stream, from) or nil
  end
  if highest then
    local before = state_of(meta, find(stream))
    local removed = cut_upto(stream, highest)
    if removed > 0 then
      note_removal(meta, before, removed, highest)
    end
  end
  return highest == wanted
end

-- How many of the first `count` entries may go, and the last of them.
local function unkept(stream, from, count)
  local found, highest, start = 0, nil, '-'
  while from ~= '0-0' and found < count do
    local page = redis.call('XRANGE', stream, start, '(' .. from, 'COUNT', math.min(count - found, PAGE))
    if #page == 0 then
      break
    end
    found, highest = found + #page, page[#page][1]
    start = '(' .. highest
  end
  return found, highest
end

local function enforce_length(stream, meta, kept, exact)
  local info = find(stream)
  local over = info['length'] - kept.max_len
  if over <= 0 or (not exact and over < SLACK) then
    return false
  end
  local from = kept_from(stream, kept)
  if not from then
    local before = state_of(meta, info)
    local _, highest = cut_to(stream, info['length'], over)
    note_removal(meta, before, over, highest)
    return false
  end
  local found, highest = unkept(stream, from, math.min(over, ENFORCED_MAX))
  cut(stream, meta, kept, highest)
  return found == ENFORCED_MAX and found < over
end

local function enforce_age(stream, meta, kept)
  local oldest = string.format('%.0f-0', math.max(0, clock_ms() - kept.max_age_ms))
  local first = first_id(stream)
  if first and id_less(first, oldest) then
    cut(stream, meta, kept, last_below(stream, oldest))
  end
  return false
end

local function size_as_json(row)
  local size = ENTRY_JSON_BYTES + #row[1]
  for _, word in ipairs(row[2]) do
    size = size + WORD_JSON_BYTES + #word
  end
  return size
end

-- What was counted, nil where nothing was, or entries with higher IDs than there are now.
local function last_counted(stream, text)
  local upto, open, due = string.match(text or '', '^(%S+) (%S+) (%S+)$')
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if not upto or (last and id_less(last[1], upto)) then
    return nil
  end
  return { upto = upto, open = tonumber(open), due = tonumber(due) }
end

-- The parts that end, as rows of the last ID and the size; and whether there is more to count.
local function count_bytes(stream, counted, part_bytes)
  local ended, read = {}, 0
  for _ = 1, COUNTED_MAX / COUNTED_PAGE do
    local page = entries_after(stream, counted.upto, COUNTED_PAGE)
    for _, row in ipairs(page) do
      local size = size_as_json(row)
      counted.upto, counted.open, read = row[1], counted.open + size, read + size
      if counted.open >= part_bytes then
        ended[#ended + 1] = { counted.upto, counted.open }
        counted.open = 0
      end
    end
    if #page < COUNTED_PAGE then
      return ended, false
    end
    if read >= COUNTED_BYTES_MAX then
      break
    end
  end
  return ended, true
end

-- Where much stays beyond the limit, two parts become one.
local function join_parts(parts)
  if #parts <= PARTS_MAX then
    return parts
  end
  local joined = {}
  for i = 2, #parts, 2 do
    joined[#joined + 1] = { parts[i][1], parts[i - 1][2] + parts[i][2] }
  end
  if #parts % 2 == 1 then
    joined[#joined + 1] = parts[#parts]
  end
  return joined
end

-- The parts that stay, the last ID of those that may go (nil for none), and the bytes of what stays. Parts whose
-- entries are gone count no longer.
local function beyond_bytes(stream, parts, open, max_bytes)
  local first, total, highest = first_id(stream), open, nil
  for _, part in ipairs(parts) do
    total = total + part[2]
  end
  local staying = 1
  while parts[staying] do
    local last, bytes = unpack(parts[staying])
    local is_gone = not first or id_less(last, first)
    if not is_gone and total - bytes < max_bytes then
      break
    end
    highest = not is_gone and last or highest
    total, staying = total - bytes, staying + 1
  end
  return { unpack(parts, staying) }, highest, total
end

local function enforce_bytes(stream, meta, kept, exact)
  local max_bytes, known = tonumber(kept.max_bytes), metadata(meta, 'o').o
  local counted = last_counted(stream, known)
  if not counted then
    redis.call('HDEL', meta, 'z')
    counted = { upto = '0-0', open = 0, due = 0 }
  end
  local ended, has_more = count_bytes(stream, counted, max_bytes / PARTS)
  if exact or #ended > 0 or counted.open >= counted.due then
    local text = redis.call('HGET', meta, 'z')
    local parts = text and cjson.decode(text) or {}
    for _, part in ipairs(ended) do
      parts = join_parts(parts)
      parts[#parts + 1] = part
    end
    local staying, highest, total = beyond_bytes(stream, parts, counted.open, max_bytes)
    if cut(stream, meta, kept, highest) then
      parts = staying
    end
    local new = cjson.encode(parts)
    if new ~= text then
      redis.call('HSET', meta, 'z', new)
    end
    -- The first part may go when the others have the limit.
    counted.due = staying[1] and max_bytes - (total - counted.open - staying[1][2]) or max_bytes
  end
  local now = string.format('%s %.0f %.0f', counted.upto, counted.open, counted.due)
  if now ~= known then
    redis.call('HSET', meta, 'o', now)
  end
  return has_more
end

-- Whether there is or was a group, as far as is known: another program may have made and removed one between two looks.
local function had_group(stream, meta)
  if redis.call('HEXISTS', meta, 'had_group') == 1 then
    return true
  end
  local has_group = find(stream)['groups'] > 0
  if has_group then
    redis.call('HSET', meta, 'had_group', '1')
  end
  return has_group
end

-- Cut what the retention does not keep: roughly, or `exact`. Whether there is more to do. A stream that keeps what is
-- not acknowledged and never had a group keeps all, up to `max_bytes`.
local function enforce(stream, meta, exact)
  local kept = metadata(meta, unpack(RETENTION))
  if kept.keep_unacknowledged and not had_group(stream, meta) then
    kept.max_len, kept.max_age_ms, kept.keep_unacknowledged = nil, nil, nil
  end
  local has_more = kept.max_len and enforce_length(stream, meta, kept, exact)
  has_more = kept.max_age_ms and enforce_age(stream, meta, kept) or has_more
  return kept.max_bytes and enforce_bytes(stream, meta, kept, exact) or has_more or false
end

-- The stream as it is, as one text (kept.py), to be compared with what a client has seen.
local function described(stream, meta, info)
  local known = metadata(meta, 'r', 'b', 'g', 'c')
  local first = info['first-entry']
  local facts = {
    string.format('%.0f', info['length']), string.format('%.0f', info['radix-tree-nodes']),
    info['last-generated-id'], info['max-deleted-entry-id'], string.format('%.0f', info['entries-added']),
    first and first[1] or '0-0', string.format('%.0f', info['groups']), known.g or '', removed_upto(info, known),
    string.format('%.0f', redis.call('PEXPIRETIME', stream)), known.c or '', string.format('%.0f', count_schedules(meta)),
  }
  local set = metadata(meta, unpack(RETENTION))
  for _, name in ipairs(RETENTION) do
    facts[#facts + 1] = set[name] or ''
  end
  return table.concat(facts, '/')
end
