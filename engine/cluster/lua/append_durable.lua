-- Append to a stream of Durable Streams, once for each batch of a producer; or end it, behind these entries.
-- KEYS: stream, meta, answers, order, requests
-- ARGV: generation, primary, number and settled of the request ('' for none), kind, writer seq ('' for none, else '+'
--       and it), producer ('' for none), epoch, seq, whether it closes, count, entries
local stream, meta, producers, requests = KEYS[1], KEYS[2], beside(KEYS[2], 'w'), KEYS[5]
local number, kind, producer = ARGV[3], ARGV[5], ARGV[7]
local writer_seq = ARGV[6] ~= '' and string.sub(ARGV[6], 2) or nil
local epoch, seq, closes = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == '1'
local part = {
  stream = stream, meta = meta, answers = KEYS[3], order = KEYS[4], expected = '',
  whole = true, form = 'json', count = tonumber(ARGV[11]), at = 12,
}
if number ~= '' then
  local text = find_request(requests, number)
  if text then
    return { 'added', text }
  end
end
local info = find(stream)
local known = metadata(meta, 'media', 'kind', 's', 'c', 'g', 'forks')
if not info then
  return refuse(known.forks and 'stream_gone' or 'no_stream', stream)
end
if not known.media then
  return refuse('not_durable', stream)
end
local place = producer ~= '' and find_producer(producers, producer) or NOWHERE

-- The last ID, the generation, the producer's epoch and sequence, and whether the stream is closed.
local function reply(word, at)
  local words = { find(stream)['last-generated-id'], known.g, '', '', redis.call('HEXISTS', meta, 'c') }
  if at then
    words[3], words[4] = string.format('%.0f', at.epoch), string.format('%.0f', at.seq)
  end
  if word == 'duplicate' then
    -- A write: WAIT behind it then covers that of the first time.
    redis.call('HSET', meta, 'media', known.media)
  end
  return { word, table.concat(words, ' ') }
end

local is_stale = producer ~= '' and epoch < place.epoch
local is_known = producer ~= '' and epoch == place.epoch and seq <= place.seq
if known.c then
  if is_known then
    return reply('duplicate', place)
  elseif producer == '' and closes and part.count == 0 then
    return reply('duplicate')
  elseif is_stale then
    return refuse('producer_fenced', producer, string.format('%.0f', place.epoch))
  end
  return refuse_closed(stream, meta, info, known.c)
end
local refused = closes and refuse_scheduled(stream, meta)
if refused then
  return refused
end
if part.count > 0 and kind ~= known.kind then
  return refuse('media_type_differs', known.media)
end
if is_stale then
  return refuse('producer_fenced', producer, string.format('%.0f', place.epoch))
elseif is_known then
  return reply('duplicate', place)
elseif producer ~= '' then
  if epoch > place.epoch and seq > 0 and place ~= NOWHERE then
    return refuse('epoch_begins_at_zero', producer)
  end
  local next_seq = epoch == place.epoch and place.seq + 1 or 0
  if seq ~= next_seq then
    return refuse('producer_gap', producer, string.format('%.0f', next_seq), string.format('%.0f', seq))
  end
end
if writer_seq and known.s and not bytes_less(known.s, writer_seq) then
  return refuse('sequence_too_small', known.s)
end
refused = check_part(part, time_for_ids(part, ARGV[2]))
if refused then
  return refused
end
if part.count > 0 then
  store_part(part, ARGV[1])
else
  use(stream, part.ttl_ms)
end
if writer_seq then
  redis.call('HSET', meta, 's', writer_seq)
end
if producer ~= '' then
  place = { epoch = epoch, seq = seq }
  keep_producer(producers, producer, place)
end
if closes then
  close(part, '')
end
local done = reply('added', producer ~= '' and place or nil)
if number ~= '' then
  keep_request(requests, number, done[2], ARGV[4])
end
return done
