-- Return the places in the list of those that the epoch no longer holds. Told: task id and epoch of each.
local lost = {}
for i, held in ipairs(cmsgpack.unpack(ARGV[1])) do
  if not holds(read_head(held[1]), held[2]) then lost[#lost + 1] = i - 1 end
end
return lost
