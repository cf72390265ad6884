-- Move the leases' ends; return the places in the list of those that the epoch no longer holds.
-- Told: the leases' new end, then task id and epoch of each.
local told, lost = cmsgpack.unpack(ARGV[1]), {}
local lease_until = told[1]
despite_full_memory()
for i = 2, #told do
  local id, epoch = unpack(told[i])
  local head = read_head(id)
  if holds(head, epoch) then
    redis.call('ZADD', LEASED_UNTIL .. head[LISTING], lease_until, id)
    head[LEASE] = lease_until
    write_head(id, head)
  else
    lost[#lost + 1] = i - 2
  end
end
return lost
