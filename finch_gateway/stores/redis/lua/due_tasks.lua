-- Return open tasks whose deadline has come, longest overdue first.
local now, limit = unpack(cmsgpack.unpack(ARGV[1]))
local rows = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', OPEN_UNTIL, '-inf', digits(now), 'LIMIT', 0, limit)) do
  local head = read_head(id)
  -- Without a head somebody deleted its key by hand.
  if head then rows[#rows + 1] = row(id, head) else redis.call('ZREM', OPEN_UNTIL, id) end
end
return rows
