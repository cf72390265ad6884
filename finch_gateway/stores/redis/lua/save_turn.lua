-- Keep what the agent saved: 1, or 0 when the epoch no longer holds the turn.
-- Raw: turn's name, what to keep.
local now, epoch = unpack(cmsgpack.unpack(ARGV[1]))
local turn = held_turn(ARGV[2], epoch, now)
if not turn then return 0 end
turn[SAVED] = ARGV[3]
write_turn(ARGV[2], turn)
return 1
