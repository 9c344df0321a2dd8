-- Do what the records of a command say, if all that it looked at is as it was. The reply is the IDs, what the trim removed
-- and what was pending of it, how many entries for later have gone, and the last ID.
-- KEYS: stream, meta; where the request has a number, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), how many were looked at; of each its kind,
--       name and value; then operations
local stream, meta, number = KEYS[1], KEYS[2], ARGV[3]
local given, removed, affected, dropped, is_kept = '', 0, 0, 0, number == ''

local function done()
  local info = find(stream)
  return { 'added', given, removed, affected, dropped, info and info['last-generated-id'] or '0-0' }
end
local function keep()
  if not is_kept then
    keep_request(KEYS[3], number, given, ARGV[4])
    is_kept = true
  end
end

if number ~= '' then
  local text = find_request(KEYS[3], number)
  if text then
    given = text
    return done()
  end
end
local at = 6
for _ = 1, ARGV[5] do
  local found = look_at(stream, meta, ARGV[at], ARGV[at + 1])
  if (ARGV[at] == 'schedule' and string.match(found, '^[^\n]*') or found) ~= ARGV[at + 2] then
    return { 'changed' }
  end
  at = at + 3
end

-- Each is given its words, and returns a refusal where nothing is done for it.
local DO = {
  -- What was answered the first time. A write, as `touch`.
  again = function(key) given = find_answer(beside(meta, 'i'), key, clock_ms()) or '' end,
  answer = function(key, digest) keep_answer(beside(meta, 'i'), beside(meta, 'q'), key, digest, given, clock_ms()) end,
  append = function(expected, trimmed, form, count)
    local part = {
      stream = stream, meta = meta, expected = expected, whole = true, form = form,
      trim = trimmed ~= '' and cjson.decode(trimmed) or nil, count = tonumber(count), at = at,
    }
    local refused = check_part(part, time_for_ids(part, ARGV[2]))
    if refused then
      return refused
    end
    if part.count > 0 then
      removed, affected = store_part(part, ARGV[1])
      given = part.text
      keep()
    end
    for _ = 1, part.count do
      at = at + 2 + ARGV[at + 1]
    end
  end,
  close = function(mark)
    redis.call('HSET', meta, 'c', mark)
    wake(stream, find(stream)['last-generated-id'])
    dropped = drop_scheduled(meta)
  end,
  counters = function(...)
    local before = removed_upto(find(stream), metadata(meta, 'r', 'b'))
    redis.call('XSETID', stream, ...)
    -- What was removed above the new last ID is no gap for readers of what gets IDs below it.
    local upto = id_less((...), before) and (...) or before
    redis.call('HSET', meta, 'r', upto, 'b', gone(find(stream)))
  end,
  create = function() make_stream(stream, ARGV[1], meta) end,
  drop = function(name) drop_schedules(meta, { name }) end,
  group = function(command, group, start, entries_read)
    if start == '' then
      start = group_of(stream, group)['last-delivered-id']
    end
    local words = { 'XGROUP', command, stream, group, start }
    if entries_read ~= '' then
      words[6], words[7] = 'ENTRIESREAD', within(find(stream), entries_read)
    end
    redis.call(unpack(words))
  end,
  lifetime = function(at_ms)
    if at_ms == '' then
      redis.call('PERSIST', stream)
    else
      redis.call('PEXPIREAT', stream, at_ms)
    end
  end,
  live = function(ttl_ms) live_on(stream, tonumber(ttl_ms)) end,
  pass = function(token) redis.call('SET', beside(meta, 'v'), token, 'PX', 60000) end,
  put = function(name, due_ms, left, recurs, rule, entry)
    put_schedule(meta, {
      token = ARGV[1], name = name, at = due_ms, left = left, recurs = recurs, rule = rule, entry = entry,
    })
  end,
  set = function(field, value)
    if value == '' then
      redis.call('HDEL', meta, field)
    else
      redis.call('HSET', meta, field, string.sub(value, 2))
    end
  end,
  -- A write: WAIT behind it then covers that of the one that did it before.
  touch = function()
    if is_stream(stream) then
      local known = metadata(meta, 'g', 'ttl')
      redis.call('HSET', meta, 'g', known.g or ARGV[1])
      use(stream, known.ttl)
    end
  end,
  wake = function() wake(stream, find(stream)['last-generated-id']) end,
}
while at <= #ARGV do
  local word, count = ARGV[at], tonumber(ARGV[at + 1])
  local first = at + 2
  at = first + count
  local refused = DO[word](unpack(ARGV, first, at - 1))
  if refused then
    return refused
  end
end
keep()
return done()
