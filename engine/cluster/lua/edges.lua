-- Where a stream begins and ends; of a cursor whose entry was lost with a primary, also what follows the last entry
-- that was not.
-- The reply: the first entry, the last ID, removed_upto, the generation, the mark of the end ('' for none), the last
-- entry, and these.
-- KEYS: stream, meta
-- ARGV: a generation, for a stream that another program made; whether it is a use of the stream; a cursor ('' for
--       none), and how many may follow
local stream, cursor = KEYS[1], ARGV[3]
local info = find(stream)
if not info then
  return false
end
local known = metadata(KEYS[2], 'r', 'b', 'g', 't', 'c', 'ttl')
if not known.g then
  redis.call('HSET', KEYS[2], 'g', ARGV[1])
end

if ARGV[2] == '1' then
  use(stream, known.ttl)
end

-- The last ID before the loss, nil where the cursor's entry is there, or went in another way.
local function lost_after()
  local found, ms = nil, halves(cursor)
  for upto_ms, last in string.gmatch(known.t, '(%d+) (%S+)') do
    if id_less(last, cursor) and not less(upto_ms, ms) and (not found or id_less(last, found)) then
      found = last
    end
  end
  if not found or id_less(cursor, removed_upto(info, known)) then
    return nil
  end
  return #redis.call('XRANGE', stream, cursor, cursor) == 0 and found or nil
end

local row = info['first-entry']
local first, last = row and row[1] or '0-0', info['last-generated-id']
local reply = { first, last, removed_upto(info, known), known.g or ARGV[1], known.c or '', last_live_id(info) }
local after = cursor ~= '' and known.t and lost_after()
if after then
  local rows = entries_after(stream, after, ARGV[4])
  -- A cursor directly before them skips nothing: a reader that was given the gap goes on from there.
  if not (rows[1] and rows[1][1] == id_after(cursor)) then
    reply[7] = rows
  end
end
return reply
