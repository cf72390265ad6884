-- Return tasks, newest first. Told: a listing or false for all; true for open ones only, false for ended ones
-- only, '' for both; how many.
local listing, is_open, limit = unpack(cmsgpack.unpack(ARGV[1]))
local found = {}
for _, name in ipairs(listing and {listing} or redis.call('SMEMBERS', LISTINGS)) do
  for index, open in pairs({[MADE_OPEN] = true, [MADE_ENDED] = false}) do
    if is_open == '' or is_open == open then
      local flat = redis.call('ZREVRANGE', index .. name, 0, limit - 1, 'WITHSCORES')
      for i = 1, #flat, 2 do found[#found + 1] = {tonumber(flat[i + 1]), flat[i]} end
    end
  end
end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then return a[1] > b[1] end
  return a[2] > b[2]
end)
local rows = {}
for i = 1, math.min(#found, limit) do
  local head = read_head(found[i][2])
  -- Without a head it expired on the server before anybody purged it.
  if head then rows[#rows + 1] = row(found[i][2], head) end
end
return rows
