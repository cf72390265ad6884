-- Say where a turn stands, changing nothing.
-- Raw: turn's name.
local now = unpack(cmsgpack.unpack(ARGV[1]))
local turn = read_turn(ARGV[2], now)
if turn and turn[REPLY] then return {'answered', turn[REPLY]} end
if turn and turn[LEASE] and not is_over(turn[LEASE], now) then return {'running', digits(turn[LEASE])} end
return {'free'}
