-- Keep what the agent saved: 1, or 0 when the epoch no longer holds the turn.
-- KEYS: turn. ARGV: now, epoch, what to keep.
local turn = held_turn(KEYS[1], ARGV[2], ARGV[1])
if not turn then return 0 end
turn[SAVED] = ARGV[3]
write_turn(KEYS[1], turn)
return 1
