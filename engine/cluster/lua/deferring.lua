-- Entries that were given back for later: a sorted set, 'ID group' by the time at which each comes back. Until then
-- they belong to a consumer that no client reads as. The set may name others, which were taken in another way.
local RELEASED, DEFERRED = 'weir:released', 'weir:deferred'
local RELEASES_MAX = 1000

-- As XPENDING shows it, nil where it is not pending.
local function pending_row(stream, group, id)
  local rows = redis.pcall('XPENDING', stream, group, id, id, 1)
  return not rows.err and rows[1] or nil
end

-- Whether this consumer holds it; with '' any one may, or none. What was given back has no consumer of a client's.
local function is_held_by(row, consumer)
  return consumer == '' or (row[2] == consumer and consumer ~= RELEASED and consumer ~= DEFERRED)
end

-- Whether it is another consumer's than this one's.
local function is_held_by_another(row, consumer)
  return row[2] ~= consumer and row[2] ~= RELEASED and row[2] ~= DEFERRED
end

-- Release what is due, for the next reader. Returns after how many ms the next one is, nil for none.
local function release_due(stream, meta)
  local deferred, now = beside(meta, 'd'), clock_ms()
  local upto = string.format('%.0f', now)
  -- Refused where the slot moves, and the key may be gone already: then the other server releases them.
  local due = redis.pcall('ZRANGEBYSCORE', deferred, '-inf', upto, 'LIMIT', 0, RELEASES_MAX)
  local released = false
  for _, member in ipairs(due.err and {} or due) do
    local id, group = string.match(member, '^(%S+) (.*)$')
    local row = pending_row(stream, group, id)
    if row and row[2] == DEFERRED then
      redis.call('XCLAIM', stream, group, RELEASED, 0, id, 'TIME', 0, 'JUSTID')
      released = true
    end
    redis.call('ZREM', deferred, member)
  end
  if released then
    -- A claim has no notification of its own.
    wake(stream, find(stream)['last-generated-id'])
  end
  local first = redis.pcall('ZRANGE', deferred, 0, 0, 'WITHSCORES')
  return not first.err and first[2] and math.max(0, first[2] - now) or nil
end
