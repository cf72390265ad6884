-- Count the turns under a live lease: key id, count, key id, count …
local now = unpack(cmsgpack.unpack(ARGV[1]))
local counts, flat = {}, {}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, '(' .. digits(now), '+inf')) do
  local key_id = string.sub(entry, 17)
  counts[key_id] = (counts[key_id] or 0) + 1
end
for key_id, count in pairs(counts) do
  flat[#flat + 1] = key_id
  flat[#flat + 1] = tostring(count)
end
return flat
