-- Give a held task back: 1, also for the same epoch once more; 0 when the epoch does not hold it.
local now, id, epoch = unpack(cmsgpack.unpack(ARGV[1]))
local head = read_head(id)
if not holds(head, epoch) then
  return head and head[HOLDER] == true and head[EPOCH] == epoch and 1 or 0
end
despite_full_memory()
local was = places(head)
head[READY], head[LEASE], head[HOLDER] = now, false, true
reindex(id, head, was)
write_head(id, head)
return 1
