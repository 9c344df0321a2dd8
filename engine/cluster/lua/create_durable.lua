-- Create a fork of a stream of Durable Streams, or find a stream that was created alike.
-- KEYS: stream, meta, answers, order, requests, the source and its meta
-- ARGV: generation, primary, number and settled of the request ('' for none), media, kind, config, ttl_ms, expires_at_ms
--       (both '' for none), whether it closes, where the fork begins ('' for the end), how much beyond, and of which
--       generation of its source that is ('' for any), count, entries
local stream, meta = KEYS[1], KEYS[2]
local number, media, kind, config = ARGV[3], ARGV[5], ARGV[6], ARGV[7]
local ttl_ms, expires_at_ms, closes = ARGV[8], ARGV[9], ARGV[10] == '1'
local part = {
  stream = stream, meta = meta, answers = KEYS[3], order = KEYS[4], expected = '',
  whole = true, form = 'json', count = tonumber(ARGV[14]), at = 15,
}

-- What it is, as `edges.lua` has it, its media type and whether it is closed.
local function described(word)
  local info, known = find(stream), metadata(meta, 'media', 'ttl', 'g', 'r', 'b', 'c')
  if not info then
    -- Its lifetime is over already.
    return { word, '0-0', '0-0', ARGV[1], media, '', 0 }
  end
  return {
    word, info['last-generated-id'], removed_upto(info, known), known.g, known.media, known.ttl or '', known.c and 1 or 0,
  }
end

if number ~= '' and find_request(KEYS[5], number) then
  return described('created')
end
local info = find(stream)
local known = metadata(meta, 'media', 'kind', 'config', 'ttl', 'c', 'forks')
if info then
  if not known.media or known.config ~= config or (kind ~= '' and kind ~= known.kind) or closes ~= (known.c ~= nil) then
    return refuse('stream_exists', stream)
  end
  use(stream, known.ttl)
  return described('found')
end
if known.forks then
  return refuse('stream_exists', stream)
end
local fork, refused = fork_from(KEYS[6], KEYS[7], kind, ARGV[11], tonumber(ARGV[12]), ARGV[13])
if refused then
  return refused
end
if media == '' then
  media, kind = fork.media, fork.kind
end
if ttl_ms == '' and expires_at_ms == '' then
  ttl_ms, expires_at_ms = fork.ttl_ms, fork.expires_at_ms
end
local at_ms = time_for_ids(part, ARGV[2])
if part.count > 0 and halves(fork.upto) == HALF_MAX then
  return refuse('stream_exhausted', fork.upto)
end
make_fork(part, fork, ARGV[1])
redis.call('HSET', meta, 'media', media, 'kind', kind, 'config', config)
if part.count > 0 then
  refused = check_part(part, at_ms)
  assert(not refused, 'the IDs behind it were looked at')
  store_part(part, ARGV[1])
end
if closes then
  close(part, '')
end
if number ~= '' then
  keep_request(KEYS[5], number, 'created', ARGV[4])
end
if ttl_ms ~= '' then
  redis.call('HSET', meta, 'ttl', ttl_ms)
end
local done = described('created')
-- With the last one the stream may go.
if ttl_ms ~= '' then
  live_on(stream, tonumber(ttl_ms))
elseif expires_at_ms ~= '' then
  redis.call('PEXPIREAT', stream, expires_at_ms)
end
return done
