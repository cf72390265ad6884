-- Drop what is over, oldest first, and return how many: entries of turns whose lease ended, and ended tasks with all
-- that belongs to them. Every other record expires on the server by itself.
local now, limit = unpack(cmsgpack.unpack(ARGV[1]))
local leases = math.min(redis.call('ZCOUNT', RUNNING, '-inf', digits(now)), limit)
if leases > 0 then redis.call('ZREMRANGEBYRANK', RUNNING, 0, leases - 1) end

local ended = redis.call('ZRANGEBYSCORE', ENDED_UNTIL, '-inf', digits(now), 'LIMIT', 0, limit - leases)
for _, entry in ipairs(ended) do
  local length, rest = string.match(entry, '^(%d+):(.*)$')
  local listing, id = string.sub(rest, 1, length), string.sub(rest, length + 1)
  drop_queue(id)
  redis.call('DEL', task_key(id))
  redis.call('ZREM', MADE_ENDED .. listing, id)
  redis.call('ZREM', ENDED_UNTIL, entry)
end
rank_hosts()
return leases + #ended
