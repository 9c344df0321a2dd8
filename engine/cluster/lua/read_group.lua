-- XREADGROUP of one stream that does not wait: released entries first, then idle ones, then new ones; of a paused group
-- nothing but history.
-- Entries that were delivered as often as the group's policy allows are `due` to be dead letters: they are shown
-- as such, and left as they are. So are those that are too old, where there is a stream for dead letters; else these are
-- acknowledged.
-- KEYS: stream, meta
-- ARGV: group, consumer, count ('' for all), noack, min_idle_ms ('' for no claim), claims_own, bytes_max ('' for
--       all), cursor ('>' or an ID: then what the consumer holds), whether the read has given something already
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count = ARGV[3] ~= '' and tonumber(ARGV[3]) or math.huge
local noack, min_idle = ARGV[4] == '1', tonumber(ARGV[5])
local claims_own = ARGV[6] == '1'
local bytes_left = ARGV[7] ~= '' and tonumber(ARGV[7]) or math.huge
local cursor, has_given = ARGV[8], ARGV[9] == '1'

local CANDIDATES_MAX = 1000
local PAGES_MAX = 10
local PASSED_OVER_MAX = 1000
local DUE_MAX = 100
local READ_MAX = 10000
-- As engine/states.py says.
local FAILED_DELIVERIES_MIN = 3
local EXPIRED_MAX, EXPIRED_BYTES_MAX = 1000, 4194304
-- What an entry takes as text beside its names and values.
local ENTRY_BYTES, WORD_BYTES = 40, 3

local info = find(stream)
local state = info and group_of(stream, group)
if not state then
  return refuse('no_group_in_read')
end
local policy = policy_of(KEYS[2], group)
local most, oldest, letters = deliveries_max(policy), oldest_delivered(policy), policy.dead_letter_stream
if min_idle and policy.ack_timeout_ms then
  min_idle = math.min(min_idle, tonumber(policy.ack_timeout_ms))
end

local function size_of(words)
  local size = ENTRY_BYTES + WORD_BYTES * #words
  for _, word in ipairs(words) do
    size = size + #word
  end
  return size
end

local given = 0
-- Count an entry, if it fits; the first one of the read always does.
local function takes(words)
  local size = size_of(words)
  if (given > 0 or has_given) and (given >= count or size > bytes_left) then
    return false
  end
  given, bytes_left = given + 1, bytes_left - size
  return true
end

-- A page of entries that may be claimed, longest idle first. `from` says where it begins, and afterwards where
-- the next one does, nil behind the last.
local seen = {}
local function candidates(from)
  local found = {}
  local function add(kind, may_be_own, rows)
    for _, row in ipairs(rows) do
      if not seen[row[1]] and row[2] ~= DEFERRED and (may_be_own or row[2] ~= consumer) then
        seen[row[1]] = true
        found[#found + 1] = row
      end
    end
    from[kind] = #rows == CANDIDATES_MAX and id_after(rows[#rows][1]) or nil
  end
  if from.released then
    add('released', true, redis.call('XPENDING', stream, group, from.released, '+', CANDIDATES_MAX, RELEASED))
  end
  local released = #found
  if from.idle then
    add('idle', claims_own, redis.call('XPENDING', stream, group, 'IDLE', min_idle, from.idle, '+', CANDIDATES_MAX))
  end
  local idle = { unpack(found, released + 1) }
  table.sort(idle, function(one, other)
    if one[3] ~= other[3] then
      return one[3] > other[3]
    end
    return id_less(one[1], other[1])
  end)
  for i, row in ipairs(idle) do
    found[released + i] = row
  end
  return found
end

local claimed, due, expired, has_more = {}, {}, 0, false
-- Claim what a page has; `gone` gets the IDs of those whose entries were removed.
local function claim_page(rows, gone)
  for _, row in ipairs(rows) do
    local entry = redis.call('XRANGE', stream, row[1], row[1])[1]
    local is_old = entry and oldest and id_less(row[1], oldest)
    if not entry then
      gone[#gone + 1] = row[1]
    elseif is_old and not letters then
      if expired >= EXPIRED_MAX then
        has_more = true
        return
      end
      redis.call('XACK', stream, group, row[1])
      expired = expired + 1
    elseif is_old or row[4] + 1 > most then
      if #due < DUE_MAX then
        due[#due + 1] = { entry[1], entry[2], row[2], row[4], is_old and 1 or 0 }
      end
    elseif #claimed >= count or not takes(entry[2]) then
      has_more = true
      return
    else
      -- A count beyond the numbers of Lua stays at the highest that there is.
      redis.call('XCLAIM', stream, group, consumer, 0, row[1], 'JUSTID', 'RETRYCOUNT', row[4] < 2 ^ 53 and row[4] + 1 or '9223372036854775807')
      if row[4] + 1 >= FAILED_DELIVERIES_MIN then
        redis.call('HSET', KEYS[2], 'failed/' .. group, string.format('%.0f', clock_ms()))
      end
      claimed[#claimed + 1] = { entry[1], entry[2], row[3], row[4], row[2] == RELEASED and 1 or 0 }
    end
  end
end

-- Look on while a page has nothing to take.
local function claim()
  local from, gone, pages = { released = '-', idle = '-' }, {}, 0
  repeat
    claim_page(candidates(from), gone)
    pages = pages + 1
  until #claimed + #due > 0 or has_more or pages == PAGES_MAX or not (from.released or from.idle)
  -- Few of them are skipped. Many would be in the way of each read: they are settled.
  for i = 1, #gone > PASSED_OVER_MAX and #gone or 0, CANDIDATES_MAX do
    redis.call('XACK', stream, group, unpack(gone, i, math.min(#gone, i + CANDIDATES_MAX - 1)))
  end
end

-- How many new entries fit.
local function fitting(after)
  local fits = 0
  while fits < READ_MAX and given < count do
    local page = entries_after(stream, after, math.min(100, count - given))
    for _, row in ipairs(page) do
      if not takes(row[2]) then
        return fits
      end
      fits = fits + 1
    end
    if #page == 0 then
      return fits
    end
    after = page[#page][1]
  end
  return fits
end

local function rows_of(reply)
  return reply and reply[1][2] or {}
end

-- New entries that are too old, some of them, as they follow `from`.
local function unread_old(from)
  local old, size, room = {}, 0, letters and DUE_MAX or EXPIRED_MAX
  local start = id_after(from)
  while start and id_less(start, oldest) and #old < room and size < EXPIRED_BYTES_MAX do
    local page = redis.call('XRANGE', stream, start, '(' .. oldest, 'COUNT', math.min(100, room - #old))
    for _, row in ipairs(page) do
      old[#old + 1], size = row, size + size_of(row[2])
    end
    start = #page > 0 and id_after(page[#page][1]) or nil
  end
  return old
end

-- Pass over new entries that are too old. Those to be dead letters belong to `RELEASED` until these are stored. Returns
-- whether there are more of them.
local function expire_unread(from)
  local old = oldest and unread_old(from) or {}
  if #old == 0 then
    return false
  end
  if letters then
    redis.call('XREADGROUP', 'GROUP', group, RELEASED, 'COUNT', #old, 'STREAMS', stream, '>')
    for _, row in ipairs(old) do
      redis.call('XCLAIM', stream, group, RELEASED, 0, row[1], 'TIME', 0, 'RETRYCOUNT', 0, 'JUSTID')
      due[#due + 1] = { row[1], row[2], RELEASED, 0, 1 }
    end
  else
    redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', #old, 'NOACK', 'STREAMS', stream, '>')
    expired = expired + #old
  end
  state = group_of(stream, group)
  local following = entries_after(stream, state['last-delivered-id'], 1)[1]
  return following and id_less(following[1], oldest) or false
end

local began = state
local paused = policy.paused and 1 or 0
local before = state['last-delivered-id']

-- The end of a closed stream for a group that has read so far: its mark, the last ID, and whether nothing is
-- pending. Empty while the group may be given more.
local function ended(upto)
  local known = metadata(KEYS[2], 'c', 'ttl')
  use(stream, known.ttl)
  local mark = known.c
  if not mark or id_less(upto, last_live_id(info)) then
    return {}
  end
  return { mark, info['last-generated-id'], redis.call('XPENDING', stream, group)[1] == 0 and 1 or 0 }
end

-- How many of these that the consumer holds fit. Entries that were removed take no bytes.
local function fitting_held(held, most_rows)
  for i = 1, math.min(#held, most_rows) do
    local entry = redis.call('XRANGE', stream, held[i][1], held[i][1])[1]
    if entry and not takes(entry[2]) then
      return i - 1
    end
  end
  return most_rows
end

-- What the consumer holds, with delivery counts from now.
local function history()
  local start, most_rows = id_after(cursor), math.min(count, READ_MAX)
  local held = start and redis.call('XPENDING', stream, group, start, '+', most_rows + 1, consumer) or {}
  most_rows = fitting_held(held, most_rows)
  if most_rows == 0 then
    see(stream, group, consumer)
    return { 'history', {}, letters or '', policy.generation, paused, 0, {}, before, 1, ended(before) }
  end
  local words = { 'GROUP', group, consumer, 'COUNT', most_rows, 'STREAMS', stream, cursor }
  local rows = {}
  for i, row in ipairs(rows_of(redis.call('XREADGROUP', unpack(words)))) do
    local times = held[i] and held[i][4] or 0
    if row[2] and times + 1 > most then
      due[#due + 1] = { row[1], row[2], consumer, times, 0 }
    else
      rows[#rows + 1] = { row[1], row[2], row[2] and times + 1 or times }
    end
  end
  local more = #held > most_rows and 1 or 0
  return { 'history', due, letters or '', policy.generation, paused, 0, rows, before, more, ended(before) }
end

if cursor ~= '>' then
  return history()
end
local fresh, rows = 0, {}
if paused == 0 then
  local expiring = expire_unread(before)
  before = state['last-delivered-id']
  if min_idle then
    release_due(stream, KEYS[2])
    claim()
  end
  fresh = expiring and 0 or fitting(before)
end
-- Some servers read the clock anew for each entry that they deliver.
local began_ms = read_clock_ms()
if fresh == 0 and #claimed == 0 then
  see(stream, group, consumer)
elseif fresh > 0 then
  local words = { 'GROUP', group, consumer, 'COUNT', fresh }
  if noack then
    words[#words + 1] = 'NOACK'
  end
  words[#words + 1], words[#words + 2], words[#words + 3] = 'STREAMS', stream, '>'
  rows = rows_of(redis.call('XREADGROUP', unpack(words)))
end
local ended_ms = read_clock_ms()
local last = #rows > 0 and rows[#rows][1] or before
has_more = paused == 0 and (has_more or #entries_after(stream, last, 1) > 0)
local first = info['first-entry'] and info['first-entry'][1] or '0-0'
local known = metadata(KEYS[2], 'r', 'b')
-- How many were removed unread, where that can be known.
local lost = -1
if began['entries-read'] and gone(info) == tonumber(known.b or 0) and id_less(info['max-deleted-entry-id'], first) then
  lost = math.max(0, gone(info) - began['entries-read'])
end
return {
  'new', due, letters or '', policy.generation, paused, expired,
  claimed, rows, began['last-delivered-id'], before, last, removed_upto(info, known), first, lost, has_more and 1 or 0,
  state['entries-read'] or -1, began_ms, ended_ms, ended(last),
}
