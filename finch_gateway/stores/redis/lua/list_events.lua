-- Return events in the outbox, oldest first. Told: a task's id or false for all; true for dead ones only, false for
-- live ones only, '' for both; how many.
local id, is_dead, limit = unpack(cmsgpack.unpack(ARGV[1]))
local found = {}

local function add(task_id, event)
  if event and (is_dead == '' or is_dead == (event[DEAD] and true)) then
    found[#found + 1] = {task_id, event}
  end
end

if id then
  local queue = read_queue(id) or {}
  for i = FIRST, #queue do add(id, queue[i]) end
else
  for index, dead in pairs({[LIVE] = false, [DEAD_LETTERS] = true}) do
    if is_dead == '' or is_dead == dead then
      for _, entry in ipairs(redis.call('ZRANGE', index, 0, limit - 1)) do
        local task_id, sequence = string.match(entry, '^(.*):(%d+)$')
        local queue = read_queue(task_id)
        if queue then
          add(task_id, (find_event(queue, tonumber(sequence))))
        else
          -- It expired on the server before anybody purged it.
          redis.call('ZREM', index, entry)
        end
      end
    end
  end
end

table.sort(found, function(a, b)
  if a[2][WRITTEN] ~= b[2][WRITTEN] then return a[2][WRITTEN] < b[2][WRITTEN] end
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2][SEQUENCE] < b[2][SEQUENCE]
end)

local rows = {}
for i = 1, math.min(#found, limit) do
  local task_id, event = unpack(found[i])
  local listing = (read_head(task_id) or {''})[LISTING]
  local body = unpack(cmsgpack.unpack(redis.call('HGET', outbox_key(task_id), event[SEQUENCE])))
  rows[i] = {
    task_id, event[SEQUENCE], listing, event[HOST], event[ATTEMPTS], digits(event[WRITTEN]), digits(event[DUE]),
    event[DEAD] and 1 or 0, event[DEAD] or '', body,
  }
end
return rows
