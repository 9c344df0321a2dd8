-- Entries for a stream, which ends behind them where that is asked for: then there may be none.
-- KEYS: stream, meta, answers, order, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), mkstream, expected,
--       key, digest, trim (JSON), whole, end ('' for none, else '+' and why), form, count, entries
local generation, primary, number, settled = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key, digest = ARGV[7], ARGV[8]
local part = {
  stream = KEYS[1], meta = KEYS[2], answers = KEYS[3], order = KEYS[4],
  expected = ARGV[6], trim = ARGV[9] ~= '' and cjson.decode(ARGV[9]) or nil,
  whole = ARGV[10] == '1', form = ARGV[12], count = tonumber(ARGV[13]), at = 14,
}
local function done(...)
  local reply = { ... }
  if ARGV[11] ~= '' then
    reply[5] = close(part, string.sub(ARGV[11], 2))
  end
  return reply
end

if number ~= '' then
  local text = find_request(KEYS[5], number)
  if text then
    local again = done('added', text, 0, 0)
    if again[5] then
      -- It was this request that closed it.
      again[5][3] = 0
    end
    return again
  end
end
local there = redis.call('EXISTS', part.stream) == 1
if not there and ARGV[5] == '0' then
  return false
end
if there and key ~= '' then
  local text, before = find_answer(part.answers, key, clock_ms())
  if text and before ~= digest then
    return refuse('idempotency_mismatch')
  end
  if text then
    return done('duplicate', text, 0, 0)
  end
end
local refused = check_part(part, time_for_ids(part, primary))
if refused then
  return refused
end
local removed, affected = 0, 0
if part.count > 0 then
  removed, affected = store_part(part, generation)
end
if number ~= '' then
  keep_request(KEYS[5], number, part.text, settled)
end
if key ~= '' then
  keep_answer(part.answers, part.order, key, digest, part.text, clock_ms())
end
return done('added', part.text, removed, affected)
