-- Consume one nonce: 1, or 0 when another operation consumed it before.
-- KEYS: nonce. ARGV: now, operation, the instant it may be forgotten.
if spend(KEYS[1], ARGV[2], ARGV[3], ARGV[1]) then return 1 end
return 0
