-- What Weir keeps of a group in the stream's metadata: a field of each of these names with '/' and the group's.
local POLICY = {
  'ack_timeout_ms', 'max_deliveries', 'dead_letter_stream', 'consumer_timeout_ms', 'max_age_ms', 'paused',
}

-- The group as XINFO shows it, nil where it or its stream is missing.
local function group_of(stream, group)
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local one = named(row)
    if one['name'] == group then
      return one
    end
  end
  return nil
end

-- Make a consumer known, and seen now: by a read of its history from where there is none. A read for new entries
-- does not in Redis 7.0, and the last ID of all means one: so from the ID before that.
local function see(stream, group, consumer)
  redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', stream, id_before(ID_MAX))
end

-- A group has not read more than there ever was.
local function within(info, entries_read)
  return string.format('%.0f', math.min(info and info['entries-added'] or 0, entries_read))
end

-- The most deliveries of an entry, math.huge for any number; beyond them it is due to be a dead letter.
local function deliveries_max(policy)
  return policy.dead_letter_stream and tonumber(policy.max_deliveries) or math.huge
end

-- The lowest ID that is not too old for the group, nil where none is.
local function oldest_delivered(policy)
  local max_age_ms = tonumber(policy.max_age_ms)
  return max_age_ms and string.format('%.0f-0', math.max(0, clock_ms() - max_age_ms)) or nil
end

local function policy_of(meta, group)
  local fields = {}
  for i, name in ipairs(POLICY) do
    fields[i] = name .. '/' .. group
  end
  local values = redis.call('HMGET', meta, 'g', unpack(fields))
  local policy = { generation = values[1] or '' }
  for i, name in ipairs(POLICY) do
    policy[name] = values[i + 1] or nil
  end
  return policy
end
