-- Move the end of a lease: 1, or 0 when the epoch no longer holds the turn.
-- KEYS: turn, running set. ARGV: now, epoch, the lease's new end.
local turn = held_turn(KEYS[1], ARGV[2], ARGV[1])
if not turn then return 0 end
turn[LEASE] = ARGV[3]
-- A running turn's record outlives its lease, whatever it was to be kept for.
write_turn_until(KEYS[1], turn, ARGV[3], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[3], running_entry(turn, KEYS[1]))
return 1
