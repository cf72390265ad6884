-- Spend the nonce, then say what is known of the turn or hand it over.
-- KEYS: turn, conversation, running set, and the nonce if one is to be spent.
-- ARGV: as named below; the last two only with a nonce.
local now, digest, key_id, op, lease_until, keep_until, may_start, facts, index, nonce_op, nonce_until =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11]

if KEYS[4] and not spend(KEYS[4], nonce_op, nonce_until, now) then return {'replayed'} end

local function held(turn)
  local packed = redis.call('GET', KEYS[2])
  local question = packed and cmsgpack.unpack(packed)
  if question and not is_over(question[KEPT_UNTIL], now) then
    return {'held', turn[EPOCH], turn[ATTEMPT], turn[SAVED], question[RECORD], question[VERSION]}
  end
  return {'held', turn[EPOCH], turn[ATTEMPT], turn[SAVED], false, ''}
end

local turn = read_turn(KEYS[1], now)
if turn then
  if turn[DIGEST] ~= digest then return {'conflict'} end
  if turn[REPLY] then return {'answered', turn[REPLY]} end
  if turn[LEASE] and not is_over(turn[LEASE], now) then
    -- The holder's own repeat after a lost answer gets the same right again, not a second one.
    if turn[OP] == op then return held(turn) end
    return {'running', turn[LEASE]}
  end
end
if may_start ~= '1' then return {'free'} end

local epoch, attempt, saved, keep = 1, 1, false, false
if turn then
  epoch, attempt, saved, keep = turn[EPOCH] + 1, turn[ATTEMPT], turn[SAVED], turn[KEEP]
  -- A lease that ran out was a crash; one that was given back was not.
  if turn[LEASE] then
    attempt = attempt + 1
    redis.call('ZREM', KEYS[3], running_entry(turn, KEYS[1]))
  end
end
turn = {index, digest, key_id, op, epoch, attempt, lease_until, keep, facts, saved, false}
write_turn_until(KEYS[1], turn, keep_until, now)
redis.call('ZADD', KEYS[3], lease_until, running_entry(turn, KEYS[1]))
return held(turn)
