-- Return every known revision: key id, listing, fingerprint, first seen.
-- KEYS: revisions.
local all, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  local listing, fingerprint, first_seen = unpack(cmsgpack.unpack(flat[i + 1]))
  all[#all + 1] = {flat[i], listing, fingerprint, first_seen}
end
return all
