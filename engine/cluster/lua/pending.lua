-- When those entries come back, of a page of pending ones, that were given back for later: pairs of an ID and a time.
-- KEYS: stream, meta
-- ARGV: group, start, end, count
local group = ARGV[1]
local found = {}
for _, row in ipairs(redis.call('XPENDING', KEYS[1], group, ARGV[2], ARGV[3], ARGV[4], DEFERRED)) do
  found[#found + 1] = row[1]
  found[#found + 1] = redis.call('ZSCORE', beside(KEYS[2], 'd'), row[1] .. ' ' .. group) or ''
end
return found
