-- XDEL.
-- KEYS: stream, meta
-- ARGV: IDs
local _, count = delete(KEYS[1], KEYS[2], ARGV)
return count
