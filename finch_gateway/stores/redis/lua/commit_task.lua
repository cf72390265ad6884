-- Write a change and its event: 1, also for the same operation once more; 0 when it comes too late.
-- Raw: record, event's body.
local now, id, version, epoch, op, state, is_ready, is_final, deadline, keeps_lease, keep_until, event =
  unpack(cmsgpack.unpack(ARGV[1]))

local head = read_head(id)
if not head then return 0 end
for _, known in ipairs(head[OPS]) do
  if known == op then return 1 end
end
if head[FINAL] or head[VERSION] ~= version or (epoch and not holds(head, epoch)) then return 0 end

-- The end of work that ran, and its pause; a full memory may well refuse progress.
if is_final or not keeps_lease then despite_full_memory() end
local was = places(head)
table.insert(head[OPS], 1, op)
head[OPS][OPS_KNOWN + 1] = nil
head[STATE], head[FINAL], head[DEADLINE], head[VERSION] = state, is_final, deadline, version + 1
-- One that waited already has waited since then.
head[READY] = is_ready and (head[READY] or now)
if is_final or not keeps_lease then head[LEASE], head[HOLDER] = false, false end
if is_final then head[KEEP] = keep_until end
reindex(id, head, was)
redis.call('HSET', task_key(id), 'h', cmsgpack.pack(head), 'r', ARGV[2])
if event then
  event[2] = ARGV[3]
  publish(id, event, is_final, now)
end
if is_final then
  retire(id, head, now)
  expire_ended(outbox_key(id), keep_until, now)
end
return 1
