-- Make an event due at once with a fresh schedule: 1, or 0 when it is not there. A delivery under way goes on.
local now, id, sequence = unpack(cmsgpack.unpack(ARGV[1]))
local queue = read_queue(id)
local event = queue and find_event(queue, sequence)
if not event then return 0 end
redis.call('ZREM', DEAD_LETTERS, event_entry(id, event))
redis.call('ZADD', LIVE, now, event_entry(id, event))
event[ATTEMPTS], event[WRITTEN], event[DUE], event[DEAD] = 0, now, now, false
write_queue(id, queue)
rank_hosts()
return 1
