-- A stream as the engine's own commands see it: the time, its last ID ('' for no stream), the highest that was
-- deleted, how many entries were added, its generation, removed_upto, and what is looked at.
-- KEYS: stream, meta
-- ARGV: of each its kind and name
local stream, meta = KEYS[1], KEYS[2]
local info, known, found = find(stream), metadata(meta, 'g', 'r', 'b'), {}
for i = 1, #ARGV, 2 do
  found[#found + 1] = look_at(stream, meta, ARGV[i], ARGV[i + 1])
end
if not info then
  return { clock_ms(), '', '', 0, '', '', found }
end
return {
  clock_ms(), info['last-generated-id'], info['max-deleted-entry-id'], info['entries-added'], known.g or '',
  removed_upto(info, known), found,
}
