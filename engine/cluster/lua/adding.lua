-- XADD: check all, then write all.
--
-- A part is what one stream gets: its keys, those of its answers where it has a key; `at`, where its entries begin among
-- the arguments, and `count`. Unless it is `whole`, the first ones are stored where the IDs do not suffice for all. `form` says what all entries are:
-- 'data' of one field of that name, 'json' where its values are JSON, which is what streams of Durable Streams take.
-- An entry is its ID ('*', 'ms-*' or 'ms-seq'), the number of its words, and these. A part may have `words` of its own
-- in the place of the arguments.

-- The keys of a script, as many as `count` says. Where it names one alone, the others are its last arguments (routing.py).
local function keys_of_script(count)
  return #KEYS > 1 and KEYS or { KEYS[1], unpack(ARGV, #ARGV - count + 2) }
end

-- How far ahead of the clock the floor is written, and how near the clock may come to it.
local FLOOR_AHEAD_MS = 10000
local FLOOR_LEFT_MS = 5000
-- Takeovers that readers find out about afterwards, the newest first.
local TAKEOVERS_MAX = 16
local JSON_MEDIA = 'application/json'

-- The next ID, or nil and a code.
local function next_id(last, wanted, now_ms)
  if last == ID_MAX then
    return nil, 'stream_exhausted'
  end
  local last_ms, last_seq = halves(last)
  if wanted == '*' then
    local now = string.format('%.0f', now_ms)
    return less(last_ms, now) and now .. '-0' or id_after(last)
  end
  local ms, seq = string.match(wanted, '^(%d+)-(.+)$')
  if seq == '*' then
    seq = '0'
    if ms == last_ms then
      if last_seq == HALF_MAX then
        return nil, 'id_not_increasing'
      end
      seq = plus_one(last_seq)
    end
  end
  local id = ms .. '-' .. seq
  if not id_less(last, id) then
    return nil, 'id_not_increasing'
  end
  return id
end

-- Keep where the stream ended when another primary took over, and up to which time the one before may have given
-- IDs: what readers have seen between the two is lost (`lost_after`).
local function note_takeover(part, before, upto_ms)
  local info = find(part.stream)
  if not info then
    return
  end
  local words = { string.format('%.0f', upto_ms), info['last-generated-id'] }
  for word in string.gmatch(before or '', '%S+') do
    words[#words + 1] = word
  end
  redis.call('HSET', part.meta, 't', table.concat(words, ' ', 1, math.min(#words, 2 * TAKEOVERS_MAX)))
end

-- The time for IDs by clock. A primary that took over has a clock of its own: its IDs are above the floor, also
-- where its first publish is refused.
local function time_for_ids(part, primary)
  local now = clock_ms()
  if primary == '' then
    return now
  end
  local known = metadata(part.meta, 'p', 'f', 't')
  local floor = tonumber(known.f or 0)
  local ahead = now + FLOOR_AHEAD_MS
  local upto_ms = tonumber(string.match(known.t or '', '^%d+'))
  if known.p and known.p ~= primary then
    upto_ms = math.max(now, floor)
    note_takeover(part, known.t, upto_ms)
  end
  if upto_ms then
    now = math.max(now, upto_ms + 1)
  end
  if known.p ~= primary or now > floor - FLOOR_LEFT_MS then
    redis.call('HSET', part.meta, 'p', primary, 'f', string.format('%.0f', math.max(floor, now, ahead)))
  end
  return now
end

-- Whether a stream of this kind takes entries of that form.
local function takes(kind, form)
  return form ~= '' and (kind ~= JSON_MEDIA or form == 'json')
end

-- Returns a refusal, or nil where it may be stored: then `part.ids` are the new IDs.
local function check_part(part, now_ms)
  local info = find(part.stream)
  part.is_new = not info
  local known = info and metadata(part.meta, 'c', 'kind', 'ttl') or {}
  if known.c and part.count > 0 then
    return refuse_closed(part.stream, part.meta, info, known.c)
  end
  if known.kind and not takes(known.kind, part.form) then
    return refuse('not_data', known.kind)
  end
  part.ttl_ms = known.ttl
  local last = info and info['last-generated-id'] or '0-0'
  if part.expected ~= '' and part.expected ~= last then
    local empty = not info or info['length'] == 0
    if not (empty and part.expected == '0-0') then
      return refuse('last_id_mismatch', last)
    end
  end
  if part.trim and info and is_unplannable(part.trim, info, part.count) then
    return refuse('too_long_to_count', WALKED_MAX)
  end
  local words, ids, at, automatic = part.words or ARGV, {}, part.at, true
  for i = 1, part.count do
    local id, code = next_id(last, words[at], now_ms)
    if not id then
      if part.whole or i == 1 then
        return refuse(code, last)
      end
      part.count = i - 1
      break
    end
    automatic = automatic and words[at] == '*'
    ids[i], last = id, id
    at = at + 2 + words[at + 1]
  end
  part.ids = ids
  part.text = automatic and ids[1] and ids[1] .. '..' .. last or table.concat(ids, ',')
  return nil
end

local function store_part(part, generation)
  if part.is_new then
    begin_stream(part.stream, generation, part.meta)
  end
  local words, at = part.words or ARGV, part.at
  for i = 1, part.count do
    local stop = at + 1 + words[at + 1]
    redis.call('XADD', part.stream, part.ids[i], unpack(words, at + 2, stop))
    at = stop + 1
  end
  local removed, affected = 0, 0
  if part.trim then
    local _, went, _, lost = trim(part.stream, part.meta, part.trim)
    removed, affected = went, lost
  end
  enforce(part.stream, part.meta, false)
  use(part.stream, part.ttl_ms)
  return removed, affected
end

-- A stream is not closed while entries are scheduled, which would never come.
local function refuse_scheduled(stream, meta)
  local count = redis.call('HLEN', beside(meta, 's'))
  return count > 0 and refuse('has_schedules', stream, count) or nil
end

-- End a stream for good, without what is scheduled. The reply is its last ID, the mark of its end, whether it was closed
-- before, and how many entries for later have gone.
local function close(part, reason)
  local before = redis.call('HGET', part.meta, 'c')
  local mark = before or string.format('%.0f %s', clock_ms(), reason)
  -- A write in any case: WAIT behind it then covers that of the one that closed it.
  redis.call('HSET', part.meta, 'c', mark)
  local last = find(part.stream)['last-generated-id']
  wake(part.stream, last)
  return { last, mark, before and 1 or 0, drop_scheduled(part.meta) }
end
