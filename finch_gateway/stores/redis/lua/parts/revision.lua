-- The credential revisions this namespace has seen: a hash of key id to a packed list of listing, fingerprint and
-- the instant it was first seen.
local REVISIONS = tag .. 'revisions'

local function revision_row(key_id, packed)
  local listing, fingerprint, first_seen = unpack(cmsgpack.unpack(packed))
  return {key_id, listing, fingerprint, digits(first_seen)}
end

