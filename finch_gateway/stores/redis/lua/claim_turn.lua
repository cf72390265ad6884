-- Spend the nonce, then say what is known of the turn or hand it over.
-- Raw: turn's name, conversation's name, facts, name of the receipt of a task with the same identity or nothing; and
-- the nonce's name if one is to be spent.
local now, digest, key_id, op, lease_until, keep_until, may_start, listing, invocation_id, turn_id, conversation_id,
  nonce_op, nonce_until = unpack(cmsgpack.unpack(ARGV[1]))
local name, conversation, facts, same_task, nonce = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

if nonce and not spend(nonce, nonce_op, nonce_until, now) then return {'replayed'} end

local function held(turn)
  local packed = redis.call('GET', tag .. 'c' .. conversation)
  local question = packed and cmsgpack.unpack(packed)
  if question and not is_over(question[KEPT_UNTIL], now) then
    return {'held', turn[EPOCH], turn[ATTEMPT], turn[SAVED], question[RECORD], question[VERSION]}
  end
  return {'held', turn[EPOCH], turn[ATTEMPT], turn[SAVED], false, ''}
end

local turn = read_turn(name, now)
if turn then
  if turn[DIGEST] ~= digest then return {'conflict'} end
  if turn[REPLY] then return {'answered', turn[REPLY]} end
  if turn[LEASE] and not is_over(turn[LEASE], now) then
    -- The holder's own repeat after a lost answer gets the same right again, not a second one.
    if turn[OP] == op then return held(turn) end
    return {'running', digits(turn[LEASE])}
  end
end
if same_task ~= '' and redis.call('GET', tag .. 'i' .. same_task) then return {'conflict'} end
if not may_start then return {'free'} end

local epoch, attempt, saved, keep = 1, 1, false, false
if turn then
  epoch, attempt, saved, keep = turn[EPOCH] + 1, turn[ATTEMPT], turn[SAVED], turn[KEEP]
  -- A lease that ran out was a crash; one that was given back was not.
  if turn[LEASE] then
    attempt = attempt + 1
    redis.call('ZREM', RUNNING, running_entry(name, turn))
  end
end
local index = listing .. '\n' .. invocation_id .. '\n' .. turn_id .. '\n' .. conversation_id
turn = {index, digest, key_id, op, epoch, attempt, lease_until, keep, facts, saved, false}
write_turn_until(name, turn, keep_until, now)
redis.call('ZADD', RUNNING, lease_until, running_entry(name, turn))
return held(turn)
