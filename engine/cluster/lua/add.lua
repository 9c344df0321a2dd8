-- Entries for a stream, which ends behind them where that is asked for: then there may be none.
-- KEYS: stream, meta; where there is a key, answers and order; where the request has a number, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), mkstream, whole, end ('' for none, else '+'
--       and why, or '!' and why where that drops what is scheduled); expected, key, digest, trim (JSON), form, count,
--       entries
local generation, primary, number, settled = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key, digest = ARGV[9], ARGV[10]
local keys = keys_of_script(2 + (key ~= '' and 2 or 0) + (number ~= '' and 1 or 0))
local requests = keys[#keys]
local part = {
  stream = keys[1], meta = keys[2], answers = keys[3], order = keys[4],
  expected = ARGV[8], trim = ARGV[11] ~= '' and cjson.decode(ARGV[11]) or nil,
  whole = ARGV[6] == '1', form = ARGV[12], count = tonumber(ARGV[13]), at = 14,
}
local function done(...)
  local reply = { ... }
  if ARGV[7] ~= '' then
    reply[5] = close(part, string.sub(ARGV[7], 2))
  end
  return reply
end

if number ~= '' then
  local text = find_request(requests, number)
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
local refused = there and string.sub(ARGV[7], 1, 1) == '+' and refuse_scheduled(part.stream, part.meta)
if refused then
  return refused
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
refused = check_part(part, time_for_ids(part, primary))
if refused then
  return refused
end
local removed, affected = 0, 0
if part.count > 0 then
  removed, affected = store_part(part, generation)
end
if number ~= '' then
  keep_request(requests, number, part.text, settled)
end
if key ~= '' then
  keep_answer(part.answers, part.order, key, digest, part.text, clock_ms())
end
return done('added', part.text, removed, affected)
