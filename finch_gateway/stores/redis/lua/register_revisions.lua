-- Record credential revisions not seen before; return those known under another fingerprint or listing, and
-- then write nothing.
-- KEYS: revisions. ARGV: key id, listing, fingerprint, first seen; again for each revision.
local unlike, fresh = {}, {}
for i = 1, #ARGV, 4 do
  local packed = redis.call('HGET', KEYS[1], ARGV[i])
  if not packed then
    fresh[#fresh + 1] = i
  else
    local listing, fingerprint, first_seen = unpack(cmsgpack.unpack(packed))
    if listing ~= ARGV[i + 1] or fingerprint ~= ARGV[i + 2] then
      unlike[#unlike + 1] = {ARGV[i], listing, fingerprint, first_seen}
    end
  end
end
if #unlike > 0 then return unlike end
for _, i in ipairs(fresh) do
  redis.call('HSETNX', KEYS[1], ARGV[i], cmsgpack.pack({ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]}))
end
return {}
