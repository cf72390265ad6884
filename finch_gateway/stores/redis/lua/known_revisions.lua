-- Return every known revision: key id, listing, fingerprint, first seen.
local all, flat = {}, redis.call('HGETALL', REVISIONS)
for i = 1, #flat, 2 do all[#all + 1] = revision_row(flat[i], flat[i + 1]) end
return all
