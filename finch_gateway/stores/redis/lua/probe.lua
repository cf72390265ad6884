-- Write something that costs nothing, so that a server which takes no writes says so.
redis.call('SET', tag .. 'probe', '1', 'PX', 1000)
return 1
