-- Entries for later, beside their stream: s a hash, name → 'token at_ms left recurs', rule and entry, a line each; t the
-- names by their time; n the names in order. `left` is '-' where runs are not counted. A token is of one definition.
-- An entry is the lengths of its words, a line feed, and the words.

local function schedule_keys(meta)
  return beside(meta, 's'), beside(meta, 't'), beside(meta, 'n')
end

-- While a slot moves, this is refused before anything has changed, and not in the midst.
local function expect_schedules_here(meta)
  redis.call('EXISTS', schedule_keys(meta))
end

local function find_schedule(meta, name)
  local value = redis.call('HGET', beside(meta, 's'), name)
  if not value then
    return nil
  end
  local head, rule, entry = string.match(value, '^([^\n]*)\n([^\n]*)\n(.*)$')
  local token, at, left, recurs = string.match(head, '^(%S+) (%d+) (%S+) ([01])$')
  return { name = name, head = head, rule = rule, entry = entry, token = token, at = at, left = left, recurs = recurs }
end

local function put_schedule(meta, one)
  local hash, times, names = schedule_keys(meta)
  one.head = table.concat({ one.token, one.at, one.left, one.recurs }, ' ')
  redis.call('HSET', hash, one.name, one.head .. '\n' .. one.rule .. '\n' .. one.entry)
  redis.call('ZADD', times, one.at, one.name)
  redis.call('ZADD', names, 0, one.name)
end

-- The last that a script does with these keys: they may go with it.
local function drop_schedules(meta, names)
  if #names > 0 then
    local hash, times, in_order = schedule_keys(meta)
    redis.call('HDEL', hash, unpack(names))
    redis.call('ZREM', times, unpack(names))
    redis.call('ZREM', in_order, unpack(names))
  end
end

-- After how many ms the first one is due, less than 0 where it is late, nil for none.
local function next_schedule(meta)
  local first = redis.pcall('ZRANGE', beside(meta, 't'), 0, 0, 'WITHSCORES')
  return not first.err and first[2] and first[2] - clock_ms() or nil
end

-- Their entries, as `adding.lua` takes a part. The stream is there, so it takes what it took when they were set.
local function part_of(keys, schedules)
  local words = {}
  for _, one in ipairs(schedules) do
    local lengths, text = string.match(one.entry, '^([^\n]*)\n(.*)$')
    local at, first = 1, #words + 2
    words[first - 1] = '*'
    words[first] = 0
    for length in string.gmatch(lengths, '%d+') do
      words[#words + 1] = string.sub(text, at, at + length - 1)
      at = at + length
    end
    words[first] = #words - first
  end
  return {
    stream = keys[1], meta = keys[2], answers = keys[3], order = keys[4], expected = '', whole = true, form = 'json',
    count = #schedules, at = 1, words = words,
  }
end
