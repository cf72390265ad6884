-- Stands before every script: what a turn's record, a question and a nonce look like.
--
-- Instants come in and go back out as the text they were given, so that no digit is lost; they are compared as
-- numbers. What is over by the caller's clock counts as gone: a key's own expiry only frees the memory later.

-- A turn is one packed list, so that it costs one key whatever it holds. What is not there is false.
--   INDEX   the ids a person knows the turn by, for operators
--   LEASE   the instant the lease ends; false when nobody holds the turn (given back or answered)
--   KEEP    the instant until which the record is kept
local INDEX, DIGEST, KEY_ID, OP, EPOCH, ATTEMPT, LEASE, KEEP, FACTS, SAVED, REPLY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

-- A question is a packed list too.
local VERSION, KEPT_UNTIL, RECORD = 1, 2, 3

local function is_over(instant, now)
  return tonumber(instant) <= tonumber(now)
end

-- Memory is freed this much later than asked for, so that callers whose clocks differ still agree.
local CLOCK_SPREAD_S = 10

local function ttl_ms(instant, now)
  return math.max(1, math.ceil((instant - now + CLOCK_SPREAD_S) * 1000))
end

local function read_turn(key, now)
  local packed = redis.call('GET', key)
  if not packed then return nil end
  local turn = cmsgpack.unpack(packed)
  if is_over(turn[KEEP], now) then return nil end
  return turn
end

local function write_turn(key, turn)
  redis.call('SET', key, cmsgpack.pack(turn), 'KEEPTTL')
end

-- Write a turn and keep it until `keep_until`, or until later if that was asked before.
local function write_turn_until(key, turn, keep_until, now)
  if turn[KEEP] and tonumber(turn[KEEP]) >= tonumber(keep_until) then return write_turn(key, turn) end
  turn[KEEP] = keep_until
  redis.call('SET', key, cmsgpack.pack(turn), 'PX', ttl_ms(keep_until, now))
end

-- The turn, if this epoch holds it: neither given back nor answered, and nobody took it over. That its lease
-- ended does not matter as long as nobody did.
local function held_turn(key, epoch, now)
  local turn = read_turn(key, now)
  if turn and turn[LEASE] and turn[EPOCH] == tonumber(epoch) then return turn end
  return nil
end

-- A turn's entry in the set of running turns: the 16 bytes that name the turn, then its key id, so that counting
-- by key id reads that one set only.
local function running_entry(turn, key)
  return string.sub(key, -16) .. turn[KEY_ID]
end

-- Consume a nonce: true when it is this operation's now, or already was.
local function spend(key, op, expires, now)
  local mark = expires .. ' ' .. op
  if redis.call('SET', key, mark, 'NX', 'PX', ttl_ms(expires, now)) then return true end
  local until_when, holder = string.match(redis.call('GET', key), '^(%S+) (.*)$')
  if holder == op then return true end
  if not is_over(until_when, now) then return false end
  redis.call('SET', key, mark, 'PX', ttl_ms(expires, now))
  return true
end

