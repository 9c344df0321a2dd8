-- What was answered under an idempotency key, and to a request that a gateway may send again.
--
-- Answers of a stream, or of a slot: a hash, key → 'ms size digest answer', and a list of 'ms key' in order of time.
-- A gateway's requests: a sorted set, 'number answer' by number; what it has settled goes.
--
-- A script never takes the last of a key that it goes on to use: while the slot moves, a cluster refuses commands on
-- a key that is not there, and so the rest of the script.

local ANSWER_AGE_MS = 24 * 3600 * 1000
local ANSWERS_MAX = 10000
local REQUEST_AGE_MS = 60000

-- What is answered again counts as a write: WAIT behind it then covers the first one too, which another
-- connection may have made.

-- nil, or what was answered and the digest of the body.
local function find_answer(answers, key, now_ms)
  local found = redis.call('HGET', answers, key)
  if not found then
    return nil
  end
  local at_ms, size, rest = string.match(found, '^(%d+) (%d+) (.*)$')
  if now_ms - at_ms > ANSWER_AGE_MS then
    return nil
  end
  redis.call('PEXPIRE', answers, ANSWER_AGE_MS + 1)
  return string.sub(rest, size + 1), string.sub(rest, 1, size)
end

local function forget_oldest(answers, order)
  local at_ms, key = string.match(redis.call('LPOP', order), '^(%d+) (.*)$')
  local found = redis.call('HGET', answers, key)
  -- A key that was used again stands in the list twice.
  if found and string.match(found, '^%d+') == at_ms then
    redis.call('HDEL', answers, key)
  end
end

local function keep_answer(answers, order, key, digest, text, now_ms)
  local at_ms = string.format('%.0f', now_ms)
  redis.call('HSET', answers, key, at_ms .. ' ' .. #digest .. ' ' .. digest .. text)
  if redis.call('RPUSH', order, at_ms .. ' ' .. key) > ANSWERS_MAX then
    forget_oldest(answers, order)
  end
  redis.call('PEXPIRE', answers, ANSWER_AGE_MS + 1)
  redis.call('PEXPIRE', order, ANSWER_AGE_MS + 1)
end

-- What was answered to this very request, nil for nothing.
local function find_request(requests, number)
  local found = redis.call('ZRANGEBYSCORE', requests, number, number)[1]
  if not found then
    return nil
  end
  redis.call('PEXPIRE', requests, REQUEST_AGE_MS)
  return string.match(found, '^%d+ (.*)$')
end

-- Directly behind what the request has stored, so that it is found however the rest ends. What the gateway has
-- settled is forgotten.
local function keep_request(requests, number, text, settled)
  redis.call('ZADD', requests, number, number .. ' ' .. text)
  redis.call('ZREMRANGEBYSCORE', requests, '-inf', settled)
  redis.call('PEXPIRE', requests, REQUEST_AGE_MS)
end
