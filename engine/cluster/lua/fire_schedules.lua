-- Append the entries of schedules that are due, and keep what is left of these: nothing where one of them is not as it was
-- seen. The reply is how many entries.
-- KEYS: stream, meta, answers, order
-- ARGV: generation, primary; of each its name, head, next time ('' for none), what is left then, whether it runs, its rule
local stream, meta = KEYS[1], KEYS[2]
expect_schedules_here(meta)
if not is_stream(stream) then
  return { 'fired', 0 }
end
local going_on, ended, runs = {}, {}, {}
for i = 3, #ARGV, 6 do
  local one = find_schedule(meta, ARGV[i])
  if not one or one.head ~= ARGV[i + 1] then
    return { 'fired', 0 }
  end
  one.left, one.rule = ARGV[i + 3], ARGV[i + 5]
  if ARGV[i + 2] == '' then
    ended[#ended + 1] = one.name
  else
    one.at = ARGV[i + 2]
    going_on[#going_on + 1] = one
  end
  if ARGV[i + 4] == '1' then
    runs[#runs + 1] = one
  end
end
if #runs > 0 then
  local part = part_of(KEYS, runs)
  local refused = check_part(part, time_for_ids(part, ARGV[2]))
  if refused then
    return refused
  end
  store_part(part, ARGV[1])
end
for _, one in ipairs(going_on) do
  put_schedule(meta, one)
end
drop_schedules(meta, ended)
return { 'fired', #runs }
