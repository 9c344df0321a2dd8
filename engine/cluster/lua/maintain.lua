-- What time brings to a stream: its retention, what was given back for later, silent consumers, and the end of what is
-- kept beside a stream that has expired. The reply is 1 where there is more to do, after how many ms the first schedule
-- is due, nil for none, how many there are, and how many have gone with a stream of this name.
-- KEYS: stream, meta, answers, order
-- ARGV: for how long this primary is known, and how much longer than the group says a consumer may be silent, ms
local stream, meta = KEYS[1], KEYS[2]
local watched_ms, grace_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
-- For that long after the floor of IDs a primary's clock may be behind it.
local FLOOR_AGE_MS = 24 * 3600 * 1000
local TAKEN_MAX = 400

-- Release what the consumer holds, then remove it. Whether it holds more.
local function remove(group, consumer)
  local rows = redis.call('XPENDING', stream, group, '-', '+', TAKEN_MAX, consumer)
  for _, row in ipairs(rows) do
    redis.call('XCLAIM', stream, group, RELEASED, 0, row[1], 'TIME', 0, 'JUSTID')
  end
  if #rows == TAKEN_MAX then
    return true
  end
  redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
  return false
end

local function remove_silent(group)
  local timeout_ms = tonumber(redis.call('HGET', meta, 'consumer_timeout_ms/' .. group) or '')
  if not timeout_ms or watched_ms < timeout_ms + grace_ms then
    return false
  end
  local has_more = false
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local one = named(row)
    if one['name'] ~= RELEASED and one['name'] ~= DEFERRED and one['idle'] >= timeout_ms + grace_ms then
      has_more = remove(group, one['name']) or has_more
    end
  end
  return has_more
end

if redis.call('EXISTS', stream) == 1 then
  -- Without memory left, a server refuses what may take more, but not behind another write: and this frees some.
  redis.call('HDEL', meta, '')
  local has_more = enforce(stream, meta, true)
  has_more = release_due(stream, meta) == 0 or has_more
  for _, group in ipairs(groups_of(stream)) do
    has_more = remove_silent(group['name']) or has_more
  end
  local dropped = redis.call('HGET', meta, 'x')
  if dropped then
    redis.call('HDEL', meta, 'x')
  end
  return { has_more and 1 or 0, next_schedule(meta) or false, count_schedules(meta), tonumber(dropped or 0) }
end
local known = metadata(meta, 'p', 'f')
local dropped = forget(unpack(KEYS))
if known.f and tonumber(known.f) > clock_ms() - FLOOR_AGE_MS then
  redis.call('HSET', meta, 'p', known.p, 'f', known.f)
end
return { 0, false, 0, dropped }
