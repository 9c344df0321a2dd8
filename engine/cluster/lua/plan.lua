-- What there is after an ID, and which part of it is read next. What is near is counted; beyond that, entries
-- are taken to be spread evenly over time between the first and the last one, and to have the size of those near.
-- KEYS: stream, meta
-- ARGV: generation, after, upto ('' for all), max entries ('' for all), max bytes ('' for all), parts, whether
--       it is to be a write, for WAIT
local WALKED_MAX, WALKED_BYTES_MAX, PAGE = 2000, 1048576, 200
-- An entry's text beside its ID, names and values; and that of each field.
local ENTRY_BYTES, FIELD_BYTES = 20, 6
local stream, meta, after = KEYS[1], KEYS[2], ARGV[2]
local info = find(stream)
if not info then
  return false
end
local known = metadata(meta, 'r', 'b', 'g', 'c')
if ARGV[7] == '1' or not known.g then
  redis.call('HSET', meta, 'g', known.g or ARGV[1])
end
local last = info['last-generated-id']
local upto = (ARGV[3] == '' or id_less(last, ARGV[3])) and last or ARGV[3]
if id_less(upto, after) then
  upto = after
end

-- The next entries up to `upto`, the bytes up to each, and how many entries follow.
local walked, bytes, size, beyond = {}, {}, 0, 0
local function walk()
  local start = id_after(after)
  while start and #walked + beyond < WALKED_MAX and size < WALKED_BYTES_MAX do
    local page = redis.call('XRANGE', stream, start, '+', 'COUNT', PAGE)
    for _, row in ipairs(page) do
      if id_less(upto, row[1]) then
        beyond = beyond + 1
      else
        size = size + ENTRY_BYTES + #row[1] + FIELD_BYTES * #row[2] / 2
        for _, word in ipairs(row[2]) do
          size = size + #word
        end
        walked[#walked + 1], bytes[#bytes + 1] = row[1], size
      end
    end
    start = #page == PAGE and id_after(page[PAGE][1])
  end
  return not start
end
local is_whole = walk()
local is_counted = is_whole or beyond > 0

local function ms_of(id)
  return tonumber((halves(id)))
end

-- About how many entries are up to an ID.
local function rank(id)
  if info['length'] == 0 then
    return 0
  end
  local from, to = info['first-entry'][1], info['last-entry'][1]
  if id_less(id, from) then
    return 0
  elseif not id_less(id, to) or from == to then
    return info['length']
  end
  local span = math.max(1, ms_of(to) - ms_of(from))
  return info['length'] * (ms_of(id) - ms_of(from)) / span
end

local function about(from, to)
  return math.max(#walked + (is_counted and 0 or 1), math.floor(rank(to) - rank(from)))
end

local total = is_counted and #walked or about(after, upto)
local lag = is_whole and #walked + beyond or math.max(total + beyond, about(after, last))

local function last_upto(id)
  local row = redis.call('XREVRANGE', stream, id, walked[#walked], 'COUNT', 1)[1]
  return row and row[1] or walked[#walked]
end

-- The nth entry after the cursor.
local function id_at(n)
  if n <= #walked then
    return walked[n] or after
  elseif n >= total then
    return last_upto(upto)
  end
  local from, to = ms_of(walked[#walked]), ms_of(upto)
  local ms = math.floor(from + (to - from) * (n - #walked) / (total - #walked))
  return ms < to and last_upto(string.format('%.0f', ms)) or last_upto(upto)
end

local function bytes_of(n)
  return n == 0 and 0 or bytes[n] or math.floor(size / #walked * n)
end

-- How many are within so many bytes, at least one.
local function within(most)
  if most >= size then
    return is_counted and total or math.min(total, math.floor(most * #walked / size))
  end
  local n = 0
  while bytes[n + 1] <= most do
    n = n + 1
  end
  return math.max(1, n)
end

local count = total
if ARGV[5] ~= '' and total > 0 then
  count = math.min(count, within(tonumber(ARGV[5])))
end
if ARGV[4] ~= '' then
  count = math.min(count, tonumber(ARGV[4]))
end
local stop = id_at(count)
local cuts, pieces = {}, math.min(tonumber(ARGV[6]), count)
for piece = 1, pieces - 1 do
  local cut = id_at(math.floor(count * piece / pieces))
  if id_less(cuts[#cuts] or after, cut) and id_less(cut, stop) then
    cuts[#cuts + 1] = cut
  end
end
local first = info['first-entry'] and info['first-entry'][1] or '0-0'
return {
  stop, count, bytes_of(count), first, last, removed_upto(info, known), info['max-deleted-entry-id'],
  known.g or ARGV[1], lag, cuts, known.c and 1 or 0,
}
