-- What the reader of a range has to know beside it: of a closed stream the mark of its end, and the last entry.
-- KEYS: stream, meta
local mark = redis.call('HGET', KEYS[2], 'c')
if not mark then
  return {}
end
local row = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return { mark, row and row[1] or '0-0' }
