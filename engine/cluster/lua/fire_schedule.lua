-- Append the entry of a schedule now. One that recurs keeps its next time.
-- KEYS: stream, meta, answers, order, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), name, whether it may touch what recurs
local stream, meta, number, name = KEYS[1], KEYS[2], ARGV[3], ARGV[5]

if number ~= '' then
  local text = find_request(KEYS[5], number)
  if text then
    return { 'added', text, 0, 0 }
  end
end
expect_schedules_here(meta)
if not is_stream(stream) then
  return refuse('no_stream', stream)
end
local one = find_schedule(meta, name)
if not one then
  return refuse('no_schedule', stream, name)
elseif one.recurs == '1' and ARGV[6] == '0' then
  return refuse('recurring_forbidden')
end
local part = part_of(KEYS, { one })
local refused = check_part(part, time_for_ids(part, ARGV[2]))
if refused then
  return refused
end
store_part(part, ARGV[1])
if number ~= '' then
  keep_request(KEYS[5], number, part.text, ARGV[4])
end
if one.left ~= '-' then
  one.left = string.format('%.0f', one.left - 1)
end
if one.recurs == '1' and one.left ~= '0' then
  put_schedule(meta, one)
else
  drop_schedules(meta, { name })
end
return { 'added', part.text, 0, 0 }
