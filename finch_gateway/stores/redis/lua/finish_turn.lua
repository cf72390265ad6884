-- Write a turn's answer and what it does to its conversation: 1, also for the same end once more; 0 when the
-- epoch no longer holds the turn.
-- KEYS: turn, conversation, running set.
-- ARGV: now, epoch, answer, kept until, then what becomes of the question:
--   nothing | 'clear', version | 'keep', version, kept until, record
local now, epoch, reply, keep_until, effect, version, kept_until, record =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local turn = held_turn(KEYS[1], epoch, now)
if not turn then
  local ended = read_turn(KEYS[1], now)
  if ended and ended[REPLY] == reply and ended[EPOCH] == tonumber(epoch) then return 1 end
  return 0
end

-- First, because it frees memory: a server whose memory is full then still takes the answer of a turn that ran.
redis.call('ZREM', KEYS[3], running_entry(turn, KEYS[1]))
turn[OP], turn[LEASE], turn[SAVED], turn[REPLY] = '', false, false, reply
write_turn_until(KEYS[1], turn, keep_until, now)

if effect == 'keep' then
  redis.call('SET', KEYS[2], cmsgpack.pack({version, kept_until, record}), 'PX', ttl_ms(kept_until, now))
elseif effect == 'clear' then
  local packed = redis.call('GET', KEYS[2])
  -- Only the question this turn answered: a newer one stays.
  if packed and cmsgpack.unpack(packed)[VERSION] == version then redis.call('DEL', KEYS[2]) end
end
return 1
