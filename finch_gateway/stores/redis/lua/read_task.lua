-- Spend the nonce, if there is one, and return the task; false where the listing has no such task.
-- Raw: the nonce's name if one is to be spent.
local now, id, listing, nonce_op, nonce_until = unpack(cmsgpack.unpack(ARGV[1]))
if ARGV[2] and not spend(ARGV[2], nonce_op, nonce_until, now) then return 'replayed' end
local head = read_head(id)
if not head or head[LISTING] ~= listing or is_gone(head, now) then return false end
return row(id, head)
