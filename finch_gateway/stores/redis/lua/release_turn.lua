-- Give a turn back unanswered: 1, also for the same epoch once more; 0 when the epoch no longer holds it.
-- KEYS: turn, running set. ARGV: now, epoch.
local turn = read_turn(KEYS[1], ARGV[1])
if not turn or turn[REPLY] or turn[EPOCH] ~= tonumber(ARGV[2]) then return 0 end
if turn[LEASE] then
  turn[LEASE] = false
  write_turn(KEYS[1], turn)
  redis.call('ZREM', KEYS[2], running_entry(turn, KEYS[1]))
end
return 1
