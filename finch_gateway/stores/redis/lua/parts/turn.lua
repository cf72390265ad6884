-- A turn is one packed list under its digest, so that it costs one key whatever it holds. What is not there is
-- false.
--   INDEX   the ids a person knows the turn by, for operators
--   LEASE   the instant the lease ends; false when nobody holds the turn (given back or answered)
--   KEEP    the instant until which the record is kept
local INDEX, DIGEST, KEY_ID, OP, EPOCH, ATTEMPT, LEASE, KEEP, FACTS, SAVED, REPLY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

-- A conversation's open question is a packed list too.
local VERSION, KEPT_UNTIL, RECORD = 1, 2, 3

local RUNNING = tag .. 'running'

local function turn_key(name)
  return tag .. 't' .. name
end

local function read_turn(name, now)
  local packed = redis.call('GET', turn_key(name))
  if not packed then return nil end
  local turn = cmsgpack.unpack(packed)
  if is_over(turn[KEEP], now) then return nil end
  return turn
end

local function write_turn(name, turn)
  redis.call('SET', turn_key(name), cmsgpack.pack(turn), 'KEEPTTL')
end

-- Write a turn and keep it until `keep_until`, or until later if that was asked before.
local function write_turn_until(name, turn, keep_until, now)
  if turn[KEEP] and turn[KEEP] >= keep_until then return write_turn(name, turn) end
  turn[KEEP] = keep_until
  redis.call('SET', turn_key(name), cmsgpack.pack(turn), 'PX', ttl_ms(keep_until, now))
end

-- The turn, if this epoch holds it: neither given back nor answered, and nobody took it over. That its lease
-- ended does not matter as long as nobody did.
local function held_turn(name, epoch, now)
  local turn = read_turn(name, now)
  if turn and turn[LEASE] and turn[EPOCH] == epoch then return turn end
  return nil
end

-- A turn's entry in the set of running turns: the 16 bytes that name the turn, then its key id, so that counting
-- by key id reads that one set only.
local function running_entry(name, turn)
  return name .. turn[KEY_ID]
end

