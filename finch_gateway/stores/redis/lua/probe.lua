-- Write something that costs nothing, so that a server which takes no writes says so.
-- KEYS: a key of its own.
redis.call('SET', KEYS[1], '1', 'PX', 1000)
return 1
