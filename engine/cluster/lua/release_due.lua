-- Release what is due of a stream. The reply: after how many ms the next one is, -1 for none.
-- KEYS: stream, meta
return is_stream(KEYS[1]) and release_due(KEYS[1], KEYS[2]) or -1
