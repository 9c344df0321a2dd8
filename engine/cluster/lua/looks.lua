-- What the engine's own commands look at of a stream (shadow.py), as text, each by its kind and name; '' for nothing.
local LOOKS = {
  answer = function(_, meta, key) return redis.call('HGET', beside(meta, 'i'), key) end,
  -- How many entries for later there are, where they are more than that.
  count = function(_, meta, most)
    expect_schedules_here(meta)
    local count = count_schedules(meta)
    return count > tonumber(most) and count
  end,
  described = function(stream, meta)
    local info = find(stream)
    return info and described(stream, meta, info)
  end,
  exists = function(stream) return redis.call('EXISTS', stream) end,
  group = function(stream, _, name) return group_of(stream, name) and 1 end,
  lifetime = function(stream) return redis.call('PEXPIRETIME', stream) end,
  -- A value may be empty.
  meta = function(_, meta, name)
    local value = redis.call('HGET', meta, name)
    return value and '+' .. value
  end,
  pass = function(_, meta) return redis.call('GET', beside(meta, 'v')) end,
  schedule = function(_, meta, name) return redis.call('HGET', beside(meta, 's'), name) end,
}

local function look_at(stream, meta, kind, name)
  local found = LOOKS[kind](stream, meta, name)
  return type(found) == 'number' and string.format('%.0f', found) or found or ''
end
