-- Spend the nonce and accept the dispatch: task, receipt and first event.
-- Raw: receipt's name, name of the turn with the same identity, dispatch, record, receipt, event's body, and the
-- nonce's name if one is to be spent.
local now, id, listing, invocation_id, key_id, digest, op, state, is_ready, is_final, deadline, max_queue, may_start,
  receipt_until, keep_until, event, nonce_op, nonce_until = unpack(cmsgpack.unpack(ARGV[1]))
local receipt_key, same_turn, dispatch, record, receipt, body, nonce =
  tag .. 'i' .. ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]

if nonce and not spend(nonce, nonce_op, nonce_until, now) then return {'replayed'} end

local packed = redis.call('GET', receipt_key)
if packed then
  local known_digest, known_op, known_until, known_receipt = unpack(cmsgpack.unpack(packed))
  if not is_over(known_until, now) then
    if known_digest ~= digest then return {'conflict'} end
    -- The repeat of the call that created the task is told so again.
    return {'admitted', known_receipt, known_op == op and 1 or 0}
  end
end
if redis.call('GET', tag .. 't' .. same_turn) then return {'conflict'} end
if not may_start then return {'free'} end
if redis.call('ZCARD', READY_SINCE .. listing) >= max_queue then return {'full'} end

local head = {
  listing, invocation_id, key_id, now, state, is_ready and now, is_final, deadline, 1, 0, 1, false, false, {},
  is_final and keep_until,
}
redis.call('SET', receipt_key, cmsgpack.pack({digest, op, receipt_until, receipt}), 'PX', ttl_ms(receipt_until, now))
redis.call('HSET', task_key(id), 'h', cmsgpack.pack(head), 'd', dispatch, 'r', record)
redis.call('SADD', LISTINGS, listing)
redis.call('ZADD', MADE_OPEN .. listing, now, id)
redis.call('HINCRBY', OPEN_BY_KEY, key_id, 1)
reindex(id, head, {ready = false, leased = false, open = false, holder = false})
if is_final then retire(id, head, now) end
if event then
  event[2] = body
  publish(id, event, is_final, now)
  if is_final then expire_ended(outbox_key(id), keep_until, now) end
end
return {'admitted', receipt, 1}
