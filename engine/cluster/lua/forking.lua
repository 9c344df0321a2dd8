-- Forks: a stream that begins with the entries of another one, up to a place in it.

-- The server copies a whole stream, and a part of one goes through the script. None can be removed from a copy again:
-- some servers give a stream no last ID below the highest one that was deleted.
local WHOLE_MAX, PART_MAX, PART_PAGE, BEYOND_MAX = 150000, 10000, 200, 10000

-- Call with each entry up to an ID, and up to `most` of them. Whether these are all.
local function each_upto(stream, upto, most, take)
  local start, seen = '-', 0
  while start and seen < most do
    local page = redis.call('XRANGE', stream, start, upto, 'COUNT', math.min(PART_PAGE, most - seen))
    for _, row in ipairs(page) do
      take(row)
    end
    seen = seen + #page
    start = #page > 0 and id_after(page[#page][1])
    if not start or id_less(upto, start) then
      return true
    end
  end
  return not start
end

-- The last entry that a fork has whole, and of the one behind it what it has a part of: `beyond` is a number of
-- messages, or of bytes of one entry. nil where there are not as many.
local function place_in(source, kind, upto, beyond)
  if beyond == 0 then
    return upto
  elseif kind == JSON_MEDIA then
    local rows = beyond <= BEYOND_MAX and entries_after(source, upto, beyond) or {}
    return #rows == beyond and rows[beyond][1] or nil
  end
  local row = entries_after(source, upto, 1)[1]
  local data = row and row[2][2] or ''
  if beyond > #data then
    return nil
  elseif beyond == #data then
    return row[1]
  end
  return upto, { id = row[1], data = string.sub(data, 1, beyond) }
end

-- A position of a stream that a fork has the entries of, one through the other, is one of the fork: of each the
-- generation, and up to which ID, 'generation upto generation upto …', the source first.
local ORIGINS_MAX, ORIGIN = 16, '(%S+) (%S+)'

local function inherits(origins, generation, id)
  for one, upto in string.gmatch(origins or '', ORIGIN) do
    if one == generation and not id_less(upto, id) then
      return true
    end
  end
  return false
end

-- Those of a fork of this stream, up to an ID.
local function origins_of(known, upto)
  local words = { known.g, upto }
  for one, last in string.gmatch(known.origins or '', ORIGIN) do
    if #words < 2 * ORIGINS_MAX then
      words[#words + 1], words[#words + 2] = one, id_less(upto, last) and upto or last
    end
  end
  return table.concat(words, ' ')
end

-- What a fork is to be, and a refusal where it may not.
local function fork_from(source, meta, kind, upto, beyond, generation)
  local info = find(source)
  local known = metadata(meta, 'media', 'kind', 'ttl', 'r', 'b', 'g', 'origins', 'forks')
  if not info then
    return nil, refuse(known.forks and 'stream_exists' or 'no_stream', source)
  elseif not known.media then
    return nil, refuse('not_durable', source)
  elseif kind ~= '' and kind ~= known.kind then
    return nil, refuse('media_type_differs', known.media)
  end
  local last = info['last-generated-id']
  if upto == '' then
    upto = last
  end
  if generation ~= '' and generation ~= known.g and not inherits(known.origins, generation, upto) then
    return nil, refuse('fork_of_another_stream', source)
  end
  local whole, piece
  if not id_less(last, upto) then
    whole, piece = place_in(source, known.kind, upto, beyond)
  end
  if not whole then
    return nil, refuse('fork_beyond_end')
  end
  local is_whole = whole == last
  local fits = is_whole and info['length'] <= WHOLE_MAX
  if not fits and not each_upto(source, whole, PART_MAX, function() end) then
    return nil, refuse('too_large_to_fork')
  end
  local expires_at_ms = redis.call('PEXPIRETIME', source)
  return {
    source = source, meta = meta, media = known.media, kind = known.kind, upto = whole, piece = piece, fits = fits,
    origins = origins_of(known, whole),
    upto_removed = removed_upto(info, known), gone = gone(info), ttl_ms = known.ttl or '',
    expires_at_ms = expires_at_ms > 0 and string.format('%.0f', expires_at_ms) or '',
  }
end

local function make_fork(part, fork, generation)
  if fork.fits then
    redis.call('COPY', fork.source, part.stream)
    redis.call('PERSIST', part.stream)
    for _, row in ipairs(redis.call('XINFO', 'GROUPS', part.stream)) do
      redis.call('XGROUP', 'DESTROY', part.stream, named(row)['name'])
    end
    begin_stream(part.stream, generation, part.meta)
  else
    make_stream(part.stream, generation, part.meta)
    each_upto(fork.source, fork.upto, PART_MAX, function(row)
      redis.call('XADD', part.stream, row[1], unpack(row[2]))
    end)
    local added = redis.call('XLEN', part.stream) + fork.gone
    redis.call('XSETID', part.stream, fork.upto, 'ENTRIESADDED', string.format('%.0f', added), 'MAXDELETEDID', '0-0')
  end
  local upto = id_less(fork.upto, fork.upto_removed) and fork.upto or fork.upto_removed
  redis.call('HSET', part.meta, 'r', upto, 'b', string.format('%.0f', fork.gone))
  redis.call('HSET', part.meta, 'source', fork.source, 'source_meta', fork.meta, 'origins', fork.origins)
  redis.call('HSET', fork.meta, 'fork/' .. part.stream, part.meta)
  redis.call('HINCRBY', fork.meta, 'forks', 1)
  if fork.piece then
    redis.call('XADD', part.stream, fork.piece.id, 'data', fork.piece.data)
  end
end
