-- Drop one revision's record: 1, or 0 when it was not known.
-- KEYS: revisions. ARGV: key id.
return redis.call('HDEL', KEYS[1], ARGV[1])
