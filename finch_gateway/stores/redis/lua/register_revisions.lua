-- Record credential revisions not seen before; return those known under another fingerprint or listing, and
-- then write nothing. Told: a list of key id, listing, fingerprint, first seen.
local unlike, fresh = {}, {}
for _, revision in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key_id, listing, fingerprint, first_seen = unpack(revision)
  local packed = redis.call('HGET', REVISIONS, key_id)
  if not packed then
    fresh[#fresh + 1] = {key_id, cmsgpack.pack({listing, fingerprint, first_seen})}
  else
    local known = revision_row(key_id, packed)
    if known[2] ~= listing or known[3] ~= fingerprint then unlike[#unlike + 1] = known end
  end
end
if #unlike > 0 then return unlike end
for _, one in ipairs(fresh) do redis.call('HSETNX', REVISIONS, one[1], one[2]) end
return {}
