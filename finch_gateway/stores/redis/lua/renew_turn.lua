-- Move the end of a lease: 1, or 0 when the epoch no longer holds the turn.
-- Raw: turn's name.
local now, epoch, lease_until = unpack(cmsgpack.unpack(ARGV[1]))
local name = ARGV[2]
local turn = held_turn(name, epoch, now)
if not turn then return 0 end
turn[LEASE] = lease_until
-- A running turn's record outlives its lease, whatever it was to be kept for.
write_turn_until(name, turn, lease_until, now)
redis.call('ZADD', RUNNING, lease_until, running_entry(name, turn))
return 1
