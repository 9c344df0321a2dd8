-- How far each producer of a stream is: a hash, producer → 'epoch seq ms'. One that has been silent for a week is
-- forgotten, and where there are too many, those that have been silent longest.

local PRODUCER_AGE_MS = 7 * 24 * 3600 * 1000
local PRODUCERS_MAX, FORGOTTEN_AT_ONCE = 10000, 1000
-- Of a producer that has not written yet.
local NOWHERE = { epoch = -1, seq = -1 }

local function place_of(text)
  local epoch, seq, at_ms = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if not epoch or clock_ms() - at_ms > PRODUCER_AGE_MS then
    return NOWHERE
  end
  return { epoch = tonumber(epoch), seq = tonumber(seq) }
end

local function find_producer(producers, producer)
  return place_of(redis.call('HGET', producers, producer) or nil)
end

-- Many at once, since all have to be looked at.
local function forget_producers(producers)
  local rows = {}
  for name, text in pairs(named(redis.call('HGETALL', producers))) do
    rows[#rows + 1] = { name, tonumber(string.match(text, '%d+$')) }
  end
  table.sort(rows, function(one, other)
    return one[2] < other[2]
  end)
  for i = 1, FORGOTTEN_AT_ONCE do
    redis.call('HDEL', producers, rows[i][1])
  end
end

local function keep_producer(producers, producer, place)
  redis.call('HSET', producers, producer, string.format('%.0f %.0f %.0f', place.epoch, place.seq, clock_ms()))
  redis.call('PEXPIRE', producers, PRODUCER_AGE_MS + 1)
  if redis.call('HLEN', producers) > PRODUCERS_MAX then
    forget_producers(producers)
  end
end
