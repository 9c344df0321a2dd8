-- Add entries, schedule others, and cancel a schedule: all or nothing. The reply is the IDs, what the trim removed, whether
-- one was cancelled with those that recurred ('1:0,2': 0 for the one that is cancelled), and the times.
-- KEYS: stream, meta, answers, order, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), mkstream, cancel ('' for none, else '+' and
--       a name), whether that has to be there, whether it may touch what recurs, how many a stream may have, form of what
--       is scheduled, how many, how many more there may be in all; of each its name, when (time_of), entry; then expected,
--       key, digest, trim (JSON), form, count, entries
local stream, meta, requests, number = KEYS[1], KEYS[2], KEYS[5], ARGV[3]
local cancel, may_recur = ARGV[6] ~= '' and string.sub(ARGV[6], 2) or nil, ARGV[8] == '1'
local later, at = {}, 13
for i = 1, tonumber(ARGV[11]) do
  later[i] = {
    token = ARGV[1], name = ARGV[at], at = time_of(ARGV[at + 1]), left = '-', recurs = '0', rule = '', entry = ARGV[at + 2],
  }
  at = at + 3
end
local key, digest, trim_text = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
local part = {
  stream = stream, meta = meta, answers = KEYS[3], order = KEYS[4], expected = ARGV[at],
  trim = trim_text ~= '' and cjson.decode(trim_text) or nil, whole = true, form = ARGV[at + 4],
  count = tonumber(ARGV[at + 5]), at = at + 6,
}

if number ~= '' then
  local text = find_request(requests, number)
  if text then
    return { 'added', text, 0, 0 }
  end
end
expect_schedules_here(meta)
local info = find(stream)
if not info and ARGV[5] == '0' then
  return false
end
if info and key ~= '' then
  local text, before = find_answer(part.answers, key, clock_ms())
  if text and before ~= digest then
    return refuse('idempotency_mismatch')
  elseif text then
    return { 'duplicate', text .. ' 0 ', 0, 0 }
  end
end
local refused = part.count > 0 and check_part(part, time_for_ids(part, ARGV[2]))
if refused then
  return refused
end
local cancelled = info and cancel and find_schedule(meta, cancel) or nil
if cancel and not cancelled and ARGV[7] == '1' then
  return refuse('schedule_gone', cancel)
end
local recurring, new = cancelled and cancelled.recurs == '1' and { 0 } or {}, 0
for i, one in ipairs(later) do
  local before = info and find_schedule(meta, one.name) or nil
  new = new + (before and 0 or 1)
  if before and before.recurs == '1' then
    recurring[#recurring + 1] = i
  end
end
if #recurring > 0 and not may_recur then
  return refuse('recurring_forbidden')
end
refused = #later > 0 and refuse_schedules(stream, meta, info, ARGV[10], new, ARGV[9], ARGV[12])
if refused then
  return refused
end

local times, is_kept = {}, false
for i, one in ipairs(later) do
  times[i] = one.at
  is_kept = is_kept or one.name == cancel
end
local done = (cancelled and '1' or '0') .. (#recurring > 0 and ':' .. table.concat(recurring, ',') or '')
local text = table.concat({ part.text or '', done, table.concat(times, ',') }, ' ')
local removed, affected = 0, 0
if part.count > 0 then
  removed, affected = store_part(part, ARGV[1])
elseif not info and #later > 0 then
  make_stream(stream, ARGV[1], meta)
end
if number ~= '' then
  keep_request(requests, number, text, ARGV[4])
end
if key ~= '' then
  keep_answer(part.answers, part.order, key, digest, part.text, clock_ms())
end
for _, one in ipairs(later) do
  put_schedule(meta, one)
end
drop_schedules(meta, cancelled and not is_kept and { cancel } or {})
return { 'added', text, removed, affected }
