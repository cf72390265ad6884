-- Return the hosts that have an event due and not being delivered, longest due first.
local now = unpack(cmsgpack.unpack(ARGV[1]))
return redis.call('ZRANGEBYSCORE', HOSTS, '-inf', digits(now))
