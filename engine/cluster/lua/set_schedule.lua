-- Schedule an entry. One with the same definition stays as it is.
-- KEYS: stream, meta, answers, order, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), only_new, whether it may touch what
--       recurs, how many a stream may have, form, name, when (time_of), left, recurs, rule, entry, how many more there
--       may be in all
local stream, meta, number = KEYS[1], KEYS[2], ARGV[3]
local one = {
  token = ARGV[1], name = ARGV[9], left = ARGV[11], recurs = ARGV[12], rule = ARGV[13], entry = ARGV[14],
}

if number ~= '' then
  local text = find_request(KEYS[5], number)
  if text then
    return { 'set', text }
  end
end
expect_schedules_here(meta)
local info = find(stream)
local before = info and find_schedule(meta, one.name) or nil
one.at = time_of(ARGV[10])
if before then
  if ARGV[5] == '1' then
    return refuse('schedule_exists', one.name)
  elseif before.recurs == '1' and ARGV[6] == '0' then
    return refuse('recurring_forbidden')
  end
end
local is_same = before and before.entry == one.entry and before.rule == one.rule
if is_same and (one.rule ~= '' or before.at == one.at) then
  -- A write: WAIT behind it then covers that of the one that set it.
  put_schedule(meta, before)
  return { 'set', table.concat({ before.at, before.left, 0, 0 }, ' ') }
end
local refused = refuse_schedules(stream, meta, info, ARGV[8], before and 0 or 1, ARGV[7], ARGV[15])
if refused then
  return refused
end
if not info then
  make_stream(stream, ARGV[1], meta)
end
local text = table.concat({ one.at, one.left, before and 0 or 1, 1, before and before.recurs or 0 }, ' ')
put_schedule(meta, one)
if number ~= '' then
  keep_request(KEYS[5], number, text, ARGV[4])
end
return { 'set', text }
