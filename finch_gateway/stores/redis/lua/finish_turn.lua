-- Write a turn's answer and what it does to its conversation: 1, also for the same end once more; 0 when the
-- epoch no longer holds the turn.
-- Raw: turn's name, conversation's name, answer; and the question's record if one is kept.
-- `effect` is what becomes of the question: false, 'clear' or 'keep'; `version` and `kept_until` belong to it.
local now, epoch, keep_until, effect, version, kept_until = unpack(cmsgpack.unpack(ARGV[1]))
local name, conversation, reply, record = ARGV[2], tag .. 'c' .. ARGV[3], ARGV[4], ARGV[5]

local turn = held_turn(name, epoch, now)
if not turn then
  local ended = read_turn(name, now)
  if ended and ended[REPLY] == reply and ended[EPOCH] == epoch then return 1 end
  return 0
end

-- First, because it frees memory: a server whose memory is full then still takes the answer of a turn that ran.
redis.call('ZREM', RUNNING, running_entry(name, turn))
turn[OP], turn[LEASE], turn[SAVED], turn[REPLY] = '', false, false, reply
write_turn_until(name, turn, keep_until, now)

if effect == 'keep' then
  redis.call('SET', conversation, cmsgpack.pack({version, kept_until, record}), 'PX', ttl_ms(kept_until, now))
elseif effect == 'clear' then
  local packed = redis.call('GET', conversation)
  -- Only the question this turn answered: a newer one stays.
  if packed and cmsgpack.unpack(packed)[VERSION] == version then redis.call('DEL', conversation) end
end
return 1
