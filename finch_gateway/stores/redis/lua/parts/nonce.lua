-- A nonce is a key of its own, named by its digest: the instant it may be forgotten, and the operation that
-- consumed it.

-- Consume a nonce: true when it is this operation's now, or already was.
local function spend(name, op, expires, now)
  local key, mark = tag .. 'n' .. name, cmsgpack.pack({expires, op})
  if redis.call('SET', key, mark, 'NX', 'PX', ttl_ms(expires, now)) then return true end
  local until_when, holder = unpack(cmsgpack.unpack(redis.call('GET', key)))
  if holder == op then return true end
  if not is_over(until_when, now) then return false end
  redis.call('SET', key, mark, 'PX', ttl_ms(expires, now))
  return true
end

