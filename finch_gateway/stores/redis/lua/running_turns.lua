-- Count the turns under a live lease: key id, count, key id, count …
-- KEYS: running set. ARGV: now.
local counts, flat = {}, {}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf')) do
  local key_id = string.sub(entry, 17)
  counts[key_id] = (counts[key_id] or 0) + 1
end
for key_id, count in pairs(counts) do
  flat[#flat + 1] = key_id
  flat[#flat + 1] = count
end
return flat
