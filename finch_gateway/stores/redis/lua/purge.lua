-- Drop entries of leases that ended, oldest first, and return how many: the records themselves expire alone.
-- KEYS: running set. ARGV: now, how many at most.
local ended = math.min(redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[1]), tonumber(ARGV[2]))
if ended > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, ended - 1) end
return ended
