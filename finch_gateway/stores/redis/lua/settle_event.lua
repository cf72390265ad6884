-- Write how a claimed delivery ended: 1, also for the same once more; 0 when the operation no longer has the claim.
-- Told: 'delivered', or 'retry' and the instant of the next attempt, or 'dead' and the reason.
local id, sequence, op, how, detail = unpack(cmsgpack.unpack(ARGV[1]))
local queue = read_queue(id)
local event, i
if queue then event, i = find_event(queue, sequence) end
local noted = redis.call('HGET', claims_key(op), id)
if not event or event[CLAIM] ~= op then return noted == tostring(sequence) and 1 or 0 end

despite_full_memory()
unclaim(event)
if how == 'delivered' then
  take_out(id, queue, i)
elseif how == 'retry' then
  local newer = event[REPLACEABLE] and replacement(queue, i)
  if newer then
    take_out(id, queue, i)
    if newer[REPLACEABLE] then newer[ATTEMPTS], newer[DUE] = event[ATTEMPTS] + 1, detail end
  else
    event[ATTEMPTS], event[DUE] = event[ATTEMPTS] + 1, detail
  end
else
  event[DEAD] = detail
  redis.call('ZREM', LIVE, event_entry(id, event))
  redis.call('ZADD', DEAD_LETTERS, event[WRITTEN], event_entry(id, event))
end
write_queue(id, queue)
rank_hosts()
if noted then redis.call('HSET', claims_key(op), id, sequence) end
return 1
