-- Give a turn back unanswered: 1, also for the same epoch once more; 0 when the epoch no longer holds it.
-- Raw: turn's name.
local now, epoch = unpack(cmsgpack.unpack(ARGV[1]))
local name = ARGV[2]
local turn = read_turn(name, now)
if not turn or turn[REPLY] or turn[EPOCH] ~= epoch then return 0 end
if turn[LEASE] then
  turn[LEASE] = false
  write_turn(name, turn)
  redis.call('ZREM', RUNNING, running_entry(name, turn))
end
return 1
