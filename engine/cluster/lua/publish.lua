-- Publish: several streams of one slot, all or nothing.
-- KEYS: stream and meta of each part; where there is a key, answers and order of the slot; where there is a producer, that
-- one; where the request has a number, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), key, digest, epoch and
--       chunk of the producer ('' for none), number of parts; of each part mkstream, expected, trim (JSON), form,
--       count, entries
local generation, primary, number, settled = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key, digest = ARGV[5], ARGV[6]
local epoch, chunk = ARGV[7], ARGV[8]
local EPOCH_CHUNKS_MAX = 100000
local of_parts = 2 * tonumber(ARGV[9])
local others = (key ~= '' and 2 or 0) + (epoch ~= '' and 1 or 0)
local keys = keys_of_script(of_parts + others + (number ~= '' and 1 or 0))
local answers, order, requests = keys[of_parts + 1], keys[of_parts + 2], keys[#keys]
local producer = keys[of_parts + others]

if number ~= '' then
  local texts = find_request(requests, number)
  if texts then
    return { 'added', texts, {} }
  end
end
if key ~= '' then
  local texts, before = find_answer(answers, key, clock_ms())
  if texts and before ~= digest then
    return refuse('idempotency_mismatch')
  end
  if texts then
    return { 'duplicate', texts, {} }
  end
end

-- A producer: e its epoch, n the chunks of it, and the answer of each chunk by epoch and number.
local known = {}
if epoch ~= '' then
  known = metadata(producer, 'e', 'n', epoch .. ':' .. chunk)
  local answer = known[epoch .. ':' .. chunk]
  if answer then
    -- A write, as with answers by key: WAIT behind it covers the first one too.
    redis.call('HSET', producer, 'e', known.e)
    return { 'repeated', answer, {} }
  end
  if known.e and tonumber(epoch) < tonumber(known.e) then
    return refuse('stale_epoch', known.e)
  end
  if epoch == known.e and tonumber(known.n) >= EPOCH_CHUNKS_MAX then
    return refuse('too_many_chunks')
  end
end

local parts, at = {}, 10
for i = 1, tonumber(ARGV[9]) do
  local part = {
    stream = keys[2 * i - 1], meta = keys[2 * i],
    expected = ARGV[at + 1], trim = ARGV[at + 2] ~= '' and cjson.decode(ARGV[at + 2]) or nil,
    whole = true, form = ARGV[at + 3], count = tonumber(ARGV[at + 4]), at = at + 5,
  }
  if ARGV[at] == '0' and redis.call('EXISTS', part.stream) == 0 then
    return refuse('no_stream', part.stream)
  end
  local refused = check_part(part, time_for_ids(part, primary))
  if refused then
    return refused
  end
  parts[i] = part
  at = part.at
  for _ = 1, part.count do
    at = at + 2 + ARGV[at + 1]
  end
end

local given, trims = {}, {}
for i, part in ipairs(parts) do
  local removed, affected = store_part(part, generation)
  -- A name may hold slashes, and holds no line feed.
  given[i] = string.gsub(part.stream, '/', '\n') .. '/' .. part.text
  trims[2 * i - 1], trims[2 * i] = removed, affected
end
local texts = table.concat(given, '/')
if number ~= '' then
  keep_request(requests, number, texts, settled)
end
if key ~= '' then
  keep_answer(answers, order, key, digest, texts, clock_ms())
end
if epoch ~= '' then
  if known.e ~= epoch then
    -- The chunks of the epoch before the last one are not asked for any more.
    for _, field in ipairs(redis.call('HKEYS', producer)) do
      local of = string.match(field, '^(%d+):')
      if of and of ~= known.e then
        redis.call('HDEL', producer, field)
      end
    end
    redis.call('HSET', producer, 'e', epoch, 'n', 0)
  end
  redis.call('HINCRBY', producer, 'n', 1)
  redis.call('HSET', producer, epoch .. ':' .. chunk, texts)
end
return { 'added', texts, trims }
