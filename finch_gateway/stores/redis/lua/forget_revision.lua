-- Drop one revision's record: 1, or 0 when it was not known.
return redis.call('HDEL', REVISIONS, unpack(cmsgpack.unpack(ARGV[1])))
