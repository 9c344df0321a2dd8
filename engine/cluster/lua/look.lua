-- A range is read. Of a closed stream its reader has to know the mark of the end, and the last entry.
-- KEYS: stream, meta
local known = metadata(KEYS[2], 'c', 'ttl')
use(KEYS[1], known.ttl)
if not known.c then
  return {}
end
local row = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return { known.c, row and row[1] or '0-0' }
