-- Hand a task to a worker; false without one.
local now, listing, op, lease_until = unpack(cmsgpack.unpack(ARGV[1]))

-- The worker's repeat after a lost answer gets the task it holds, not a second one.
local held = redis.call('HGET', HELD_BY, op)
if held then return row(held, read_head(held)) end

-- What a dead worker held comes first: however long the queue is, it is taken over within its time.
local found = redis.call('ZRANGEBYSCORE', LEASED_UNTIL .. listing, '-inf', digits(now), 'LIMIT', 0, 1)
if not found[1] then found = redis.call('ZRANGE', READY_SINCE .. listing, 0, 0) end
local id = found[1]
if not id then return false end

local head = read_head(id)
if not head then
  -- Somebody deleted its key by hand: it must not stand in the way of the others.
  redis.call('ZREM', LEASED_UNTIL .. listing, id)
  redis.call('ZREM', READY_SINCE .. listing, id)
  return false
end
local was = places(head)
-- A lease that ran out was a crash; one that was given back was not.
if head[LEASE] then head[ATTEMPT] = head[ATTEMPT] + 1 end
head[READY], head[EPOCH], head[LEASE], head[HOLDER] = false, head[EPOCH] + 1, lease_until, op
reindex(id, head, was)
write_head(id, head)
return row(id, head)
