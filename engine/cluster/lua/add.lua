-- Entries for a stream.
-- KEYS: stream, meta; where there is a key, answers and order; where the request has a number, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), mkstream, whole; expected, key, digest,
--       trim (JSON), form, count, entries
local generation, primary, number, settled = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key, digest = ARGV[8], ARGV[9]
local keys = keys_of_script(2 + (key ~= '' and 2 or 0) + (number ~= '' and 1 or 0))
local requests = keys[#keys]
local part = {
  stream = keys[1], meta = keys[2], answers = keys[3], order = keys[4],
  expected = ARGV[7], trim = ARGV[10] ~= '' and cjson.decode(ARGV[10]) or nil,
  whole = ARGV[6] == '1', form = ARGV[11], count = tonumber(ARGV[12]), at = 13,
}

if number ~= '' then
  local text = find_request(requests, number)
  if text then
    return { 'added', text, 0, 0 }
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
    return { 'duplicate', text, 0, 0 }
  end
end
local refused = check_part(part, time_for_ids(part, primary))
if refused then
  return refused
end
local removed, affected = store_part(part, generation)
if number ~= '' then
  keep_request(requests, number, part.text, settled)
end
if key ~= '' then
  keep_answer(part.answers, part.order, key, digest, part.text, clock_ms())
end
return { 'added', part.text, removed, affected }
