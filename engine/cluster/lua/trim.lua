-- KEYS: stream, meta
-- ARGV: what is asked (JSON)
local refused, removed, first, affected = trim(KEYS[1], KEYS[2], cjson.decode(ARGV[1]))
if refused then
  return refused
end
return { 'trimmed', removed, first, affected }
