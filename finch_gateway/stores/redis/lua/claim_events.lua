-- Claim due events of a host, longest due first; return each as the delivery it is.
local now, host, op, claim_until, limit = unpack(cmsgpack.unpack(ARGV[1]))

local function delivery(id, event)
  local head = read_head(id)
  local body, url, callback_key_id = unpack(cmsgpack.unpack(redis.call('HGET', outbox_key(id), event[SEQUENCE])))
  return {
    id, event[SEQUENCE], head[LISTING], head[KEY_ID], body, url, callback_key_id, event[HOST], event[ATTEMPTS],
    digits(event[WRITTEN]),
  }
end

-- The repeat after a lost answer gets what its operation holds, and no more.
local deliveries = {}
for _, id in ipairs(redis.call('HKEYS', claims_key(op))) do
  local queue = read_queue(id)
  local event = queue and head_event(queue)
  if event and event[CLAIM] == op then deliveries[#deliveries + 1] = delivery(id, event) end
end
if deliveries[1] then return deliveries end

despite_full_memory()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DUE_AT .. host, '-inf', digits(now), 'LIMIT', 0, limit)) do
  local queue = read_queue(id)
  if queue then
    -- It is due, so a claim that is still noted has ended.
    local event = head_event(queue)
    if event[CLAIM] then
      unclaim(event)
      event = head_event(queue)
    end
    if event[HOST] == host and is_over(event[DUE], now) then
      event[CLAIM], event[CLAIM_UNTIL] = op, claim_until
      deliveries[#deliveries + 1] = delivery(id, event)
      redis.call('HSET', claims_key(op), id, 0)
    end
    write_queue(id, queue)
  else
    -- It expired on the server before anybody purged it.
    redis.call('ZREM', DUE_AT .. host, id)
    rank_host(host)
  end
end
if deliveries[1] then redis.call('PEXPIRE', claims_key(op), ttl_ms(claim_until, now)) end
return deliveries
