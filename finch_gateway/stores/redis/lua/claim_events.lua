-- Claim due events of a host, longest due first; return each as the delivery it is.
-- How many claims that ended one call puts back: what a dead instance may have had under way.
local RETURNED = 1000

local now, host, op, claim_until, limit = unpack(cmsgpack.unpack(ARGV[1]))

local function delivery(id, head, event)
  local body, url, callback_key_id = unpack(cmsgpack.unpack(redis.call('HGET', outbox_key(id), event[SEQUENCE])))
  return {
    id, event[SEQUENCE], head[LISTING], head[KEY_ID], body, url, callback_key_id, event[HOST], event[ATTEMPTS],
    digits(event[WRITTEN]),
  }
end

-- The repeat after a lost answer gets what its operation holds, and no more.
local deliveries = {}
for _, id in ipairs(redis.call('HKEYS', claims_key(op))) do
  local head, queue = read_head(id), read_queue(id)
  local event = head and queue and head_event(queue)
  if event and event[CLAIM] == op then deliveries[#deliveries + 1] = delivery(id, head, event) end
end
if deliveries[1] then return deliveries end

despite_full_memory()

-- Claims that ended make their events due again, at the instant they were due before.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', CLAIMED_UNTIL .. host, '-inf', digits(now), 'LIMIT', 0, RETURNED)) do
  local queue = read_queue(id)
  if queue then
    unclaim(head_event(queue))
    write_queue(id, queue)
  else
    displace(id, host)
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', DUE_AT .. host, '-inf', digits(now), 'LIMIT', 0, limit)) do
  local head, queue = read_head(id), read_queue(id)
  if head and queue then
    local event = head_event(queue)
    event[CLAIM], event[CLAIM_UNTIL] = op, claim_until
    deliveries[#deliveries + 1] = delivery(id, head, event)
    redis.call('HSET', claims_key(op), id, 0)
    write_queue(id, queue)
  else
    -- It expired on the server before anybody purged it.
    displace(id, host)
  end
end
rank_hosts()
if deliveries[1] then redis.call('PEXPIRE', claims_key(op), ttl_ms(claim_until, now)) end
return deliveries
