-- Keep the answer to a call of several requests under its idempotency key: at first what it is about to do.
-- KEYS: stream, answers, order
-- ARGV: key, digest, text, whether it replaces what was kept
local text, before = find_answer(KEYS[2], ARGV[1], clock_ms())
if text and before ~= ARGV[2] then
  return refuse('idempotency_mismatch')
end
if text and ARGV[4] == '0' then
  return { 'kept', text }
end
keep_answer(KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], clock_ms())
return { 'kept', '' }
