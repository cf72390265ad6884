-- Consume one nonce: 1, or 0 when another operation consumed it before.
-- Raw: nonce's name.
local now, op, expires = unpack(cmsgpack.unpack(ARGV[1]))
if spend(ARGV[2], op, expires, now) then return 1 end
return 0
