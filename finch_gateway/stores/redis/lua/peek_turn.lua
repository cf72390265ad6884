-- Say where a turn stands, changing nothing.
-- KEYS: turn. ARGV: now.
local turn = read_turn(KEYS[1], ARGV[1])
if turn and turn[REPLY] then return {'answered', turn[REPLY]} end
if turn and turn[LEASE] and not is_over(turn[LEASE], ARGV[1]) then return {'running', turn[LEASE]} end
return {'free'}
