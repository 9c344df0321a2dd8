-- What every script begins with: IDs, and what is known of a stream.
--
-- IDs are text, 'ms-seq'. Both halves are unsigned 64-bit decimals, and Lua's numbers lose digits above 2^53:
-- so they are compared and counted up as text.
--
-- Keys of a stream (keys.py): m metadata, i answers by idempotency key, q these keys in order of their time, w how
-- far each producer of Durable Streams is, d what groups gave back for later, s t n entries for later (scheduling.lua).
-- Metadata: g generation, r removed_upto, b entries-added less length as it was after the last removal through
-- Weir, p the primary that gave the last ID by clock, f the floor: no ID by clock was above it,
-- t takeovers, x how many entries for later went with the stream that had the name before, until the round over the
-- streams has counted them, c the end of a closed stream: when it was closed (ms), and why; the retention,
-- 'max_len' and so on (kept.py), o and z its bytes; whether it had a group, had_group; of each group its policy,
-- 'ack_timeout_ms/<group>' and so on.
-- Of Durable Streams: media, its kind without parameters, the config that it was created with, ttl in ms, s the last
-- Stream-Seq; of a fork its source and source_meta, the key of that one's metadata, and the origins of its entries
-- (forking.lua); of a source the number of its forks, and of each 'fork/<fork>' the key of its metadata. A stream that
-- is not there and has forks was removed.

local HALF_MAX = '18446744073709551615'
local ID_MAX = HALF_MAX .. '-' .. HALF_MAX

-- A refusal: the code of engine/errors.py, and what belongs to it.
local function refuse(code, ...)
  return { 'no', code, ... }
end

-- The comparison of texts is by the server's locale.
local function bytes_less(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

local function halves(id)
  return string.match(id, '^(%d+)-(%d+)$')
end

local function less(one, other)
  if #one ~= #other then
    return #one < #other
  end
  return one < other
end

local function id_less(one, other)
  local one_ms, one_seq = halves(one)
  local other_ms, other_seq = halves(other)
  if one_ms ~= other_ms then
    return less(one_ms, other_ms)
  end
  return less(one_seq, other_seq)
end

local function plus_one(decimal)
  if #decimal < 16 then
    return string.format('%.0f', decimal + 1)
  end
  local nines = #string.match(decimal, '9*$')
  if nines == #decimal then
    return '1' .. string.rep('0', nines)
  end
  local at = #decimal - nines
  local digit = string.char(string.byte(decimal, at) + 1)
  return string.sub(decimal, 1, at - 1) .. digit .. string.rep('0', nines)
end

local function minus_one(decimal)
  if #decimal < 16 then
    return string.format('%.0f', decimal - 1)
  end
  local zeros = #string.match(decimal, '0*$')
  local at = #decimal - zeros
  local digit = string.char(string.byte(decimal, at) - 1)
  local result = string.sub(decimal, 1, at - 1) .. digit .. string.rep('9', zeros)
  return string.match(result, '^0+(%d+)$') or result
end

-- nil behind the last.
local function id_after(id)
  local ms, seq = halves(id)
  if seq ~= HALF_MAX then
    return ms .. '-' .. plus_one(seq)
  end
  if ms == HALF_MAX then
    return nil
  end
  return plus_one(ms) .. '-0'
end

-- The next entries. A range from beyond the highest ID there can be is refused.
local function entries_after(stream, id, count)
  local start = id_after(id)
  return start and redis.call('XRANGE', stream, start, '+', 'COUNT', count) or {}
end

local function id_before(id)
  local ms, seq = halves(id)
  if seq ~= '0' then
    return ms .. '-' .. minus_one(seq)
  end
  if ms == '0' then
    return '0-0'
  end
  return minus_one(ms) .. '-' .. HALF_MAX
end

local function read_clock_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- One reading for the whole script, as a turn has one.
local now_ms
local function clock_ms()
  now_ms = now_ms or read_clock_ms()
  return now_ms
end

-- Rows of names and values as a table.
local function named(row)
  local found = {}
  for i = 1, #row, 2 do
    found[row[i]] = row[i + 1]
  end
  return found
end

-- A key of another type is another program's: under its name there is no stream.
local function is_stream(key)
  return redis.call('TYPE', key).ok == 'stream'
end

-- XINFO STREAM, nil where there is none.
local function find(stream)
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  return named(redis.call('XINFO', 'STREAM', stream))
end

local function first_id(stream)
  local row = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  return row and row[1] or nil
end

-- Entries that are gone, by any command.
local function gone(info)
  return info['entries-added'] - info['length']
end

-- removed_upto: kept for removals through Weir. Where other programs removed entries it is not known which:
-- everything below the first one that is there counts.
local function removed_upto(info, known)
  local upto = known.r or '0-0'
  if gone(info) <= tonumber(known.b or 0) then
    return upto
  end
  local row = info['first-entry']
  local below = row and id_before(row[1]) or info['last-generated-id']
  return id_less(upto, below) and below or upto
end

local function metadata(meta, ...)
  local values = redis.call('HMGET', meta, ...)
  local found = {}
  for i, name in ipairs({ ... }) do
    found[name] = values[i] or nil
  end
  return found
end

-- The ID of the last entry, '0-0' where there is none.
local function last_live_id(info)
  local row = info['last-entry']
  return row and row[1] or '0-0'
end

-- A closed stream takes no entries.
local function refuse_closed(stream, meta, info, mark)
  local generation = redis.call('HGET', meta, 'g') or ''
  return refuse('stream_closed', stream, generation, info['last-generated-id'], string.match(mark, '^%d+'))
end

-- What there is before entries are removed through Weir; `note_removal` keeps what has become of it.
local function state_of(meta, info)
  return { upto = removed_upto(info, metadata(meta, 'r', 'b')), gone = gone(info) }
end

-- `count` entries were removed, `highest` the last of those below which none was left, nil for none.
local function note_removal(meta, before, count, highest)
  local upto = before.upto
  if highest and id_less(upto, highest) then
    upto = highest
  end
  redis.call('HSET', meta, 'r', upto, 'b', before.gone + count)
end

-- Wake who waits for the stream: it changes nothing, and the server notifies of it.
local function wake(stream, last_id)
  redis.pcall('XSETID', stream, last_id)
end

-- A stream lives for that long from now, and a little more.
local function live_on(stream, ttl_ms)
  local grain = math.max(1, math.min(1000, ttl_ms / 20))
  -- Beyond that number not every one is exact.
  redis.call('PEXPIREAT', stream, string.format('%.0f', math.min(2 ^ 53, clock_ms() + ttl_ms + grain)))
end

-- A stream is used: so it lives on, where its lifetime counts from then and was not ended. Not at each use: the
-- server's notification of it wakes those who wait, and a reader that was woken uses the stream.
local function use(stream, ttl_ms)
  local ttl = tonumber(ttl_ms or '')
  local left = ttl and redis.call('PTTL', stream)
  if ttl and left >= 0 and left < ttl then
    live_on(stream, ttl)
  end
end

-- A fork is gone. So is its source, where that was removed before and has no other: then its name is free.
local function leave_source(fork, meta)
  local known = metadata(meta, 'source', 'source_meta')
  while known.source and redis.call('HDEL', known.source_meta, 'fork/' .. fork) == 1 do
    if redis.call('HINCRBY', known.source_meta, 'forks', -1) > 0 then
      return
    end
    redis.call('HDEL', known.source_meta, 'forks')
    if is_stream(known.source) then
      return
    end
    fork, meta = known.source, known.source_meta
    known = metadata(meta, 'source', 'source_meta')
    redis.call('HDEL', meta, 'source', 'source_meta')
  end
end

-- The key of another kind beside the same stream. Scripts do not name these keys: while a slot moves, a server runs no
-- script that names a key which is not there, and refuses a command on it within.
local function beside(meta, kind)
  return (string.gsub(meta, '/m/', '/' .. kind .. '/', 1))
end

-- Entries for later, which no copy has, and the rest.
local SCHEDULES, BESIDE, ANSWERS = { 's', 't', 'n' }, { 'w', 'd' }, { 'i', 'q' }

local function drop_kinds(meta, kinds)
  for _, kind in ipairs(kinds) do
    redis.pcall('DEL', beside(meta, kind))
  end
end

local function count_schedules(meta)
  local count = redis.pcall('HLEN', beside(meta, 's'))
  return type(count) == 'number' and count or 0
end

-- How many entries for later there were.
local function drop_scheduled(meta)
  local count = count_schedules(meta)
  drop_kinds(meta, SCHEDULES)
  return count
end

local function drop(meta, ...)
  -- One by one: while a slot moves, the server that it comes to refuses a command on several keys that are not there.
  for _, key in ipairs({ ... }) do
    redis.call('DEL', key)
  end
  drop_kinds(meta, BESIDE)
  return drop_scheduled(meta)
end

-- What is kept beside a stream that is gone goes too. While it has forks, these stay, and so its name is not free. The
-- reply is how many entries for later have gone.
local function forget(stream, meta, answers, order)
  local dropped = (redis.call('HGET', meta, 'x') or 0) + drop(meta, answers, order)
  if redis.call('HEXISTS', meta, 'forks') == 0 then
    leave_source(stream, meta)
    redis.call('DEL', meta)
    return dropped
  end
  for _, field in ipairs(redis.call('HKEYS', meta)) do
    if field ~= 'forks' and field ~= 'source' and field ~= 'source_meta' and string.sub(field, 1, 5) ~= 'fork/' then
      redis.call('HDEL', meta, field)
    end
  end
  return dropped
end

-- A stream that is new has nothing of the one that had its name before, but for the floor of IDs.
local function begin_stream(stream, generation, meta)
  local known = metadata(meta, 'p', 'f', 'x')
  leave_source(stream, meta)
  local dropped = (known.x or 0) + drop(meta, meta)
  known.x = dropped > 0 and dropped or nil
  drop_kinds(meta, ANSWERS)
  redis.call('HSET', meta, 'g', generation)
  for name, value in pairs(known) do
    redis.call('HSET', meta, name, value)
  end
end

-- Make a stream without entries.
local function make_stream(stream, generation, meta)
  redis.call('XGROUP', 'CREATE', stream, 'weir:maker', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', stream, 'weir:maker')
  begin_stream(stream, generation, meta)
end
