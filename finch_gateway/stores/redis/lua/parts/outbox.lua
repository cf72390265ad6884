-- A task's undelivered events are one hash: 'q', the packed queue below, and under each sequence the packed body,
-- URL and callback key id, which never change. Without events there is no hash.
--
-- The queue is {host the task stands under in the indexes or false, event, event …}, oldest event first. An event:
--   CLAIM        the operation that delivers it, or false; its claim ends at CLAIM_UNTIL
--   DEAD         why it was given up, or false while it is live
--   ENDS         whether it tells of the task's end
local SEQUENCE, HOST, REPLACEABLE, ATTEMPTS, WRITTEN, DUE, CLAIM, CLAIM_UNTIL, DEAD, ENDS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local FIRST = 2

-- The indexes over events; the names of those that are kept per host end with it.
local DUE_AT = tag .. 'due:'            -- tasks whose next event goes to a host, by when it is due
local CLAIMED_UNTIL = tag .. 'claimed:' -- tasks of which an event is claimed, by their claim's end
local HOSTS = tag .. 'hosts'            -- hosts, by the first instant in those two
local LIVE = tag .. 'live'              -- live events, by when they were written
local DEAD_LETTERS = tag .. 'dead'      -- events that were given up

local function outbox_key(id)
  return tag .. 'o' .. id
end

local function read_queue(id)
  local packed = redis.call('HGET', outbox_key(id), 'q')
  return packed and cmsgpack.unpack(packed)
end

-- An event's entry in the index: ordered by task and sequence among those written at one instant.
local function event_entry(id, event)
  return id .. string.format(':%012d', event[SEQUENCE])
end

-- What an operation claimed, task by task, and what it then settled: a hash of task id to the sequence, 0 before. It
-- lets the operation's repeats after a lost answer recognise themselves, and goes soon after the claim has ended.
local function claims_key(op)
  return tag .. 'q' .. op
end

local function is_delivering(event, now)
  return event[CLAIM] and not is_over(event[CLAIM_UNTIL], now)
end

local function unclaim(event)
  event[CLAIM], event[CLAIM_UNTIL] = false, false
end

-- The live event that has or may get the task's claim: the one with a claim, else the oldest.
local function head_event(queue)
  local oldest
  for i = FIRST, #queue do
    local event = queue[i]
    if event[CLAIM] then return event end
    if not event[DEAD] then oldest = oldest or event end
  end
  return oldest
end

local function find_event(queue, sequence)
  for i = FIRST, #queue do
    if queue[i][SEQUENCE] == sequence then return queue[i], i end
  end
end

-- The event that has replaced a replaceable one while that was delivered, or nil.
local function replacement(queue, i)
  for j = i + 1, #queue do
    local newer = queue[j]
    if not newer[DEAD] and (newer[REPLACEABLE] or newer[ENDS]) then return newer end
  end
end

-- The hosts whose indexes this step touched. It ends with `rank_hosts`, which lets the hosts' own index follow.
local touched = {}

local function rank_hosts()
  for host in pairs(touched) do
    local due = redis.call('ZRANGE', DUE_AT .. host, 0, 0, 'WITHSCORES')[2]
    local claimed = redis.call('ZRANGE', CLAIMED_UNTIL .. host, 0, 0, 'WITHSCORES')[2]
    if due and claimed and tonumber(claimed) < tonumber(due) then due = claimed end
    local first = due or claimed
    if first then redis.call('ZADD', HOSTS, first, host) else redis.call('ZREM', HOSTS, host) end
  end
end

local function displace(id, host)
  redis.call('ZREM', DUE_AT .. host, id)
  redis.call('ZREM', CLAIMED_UNTIL .. host, id)
  touched[host] = true
end

-- Put the task under its next event's host and instant.
local function place_queue(id, queue)
  local event = head_event(queue)
  if queue[1] then displace(id, queue[1]) end
  queue[1] = event and event[HOST] or false
  if not event then return end
  if event[CLAIM] then
    redis.call('ZADD', CLAIMED_UNTIL .. event[HOST], event[CLAIM_UNTIL], id)
  else
    redis.call('ZADD', DUE_AT .. event[HOST], event[DUE], id)
  end
  touched[event[HOST]] = true
end

local function write_queue(id, queue)
  place_queue(id, queue)
  if #queue < FIRST then return redis.call('DEL', outbox_key(id)) end
  redis.call('HSET', outbox_key(id), 'q', cmsgpack.pack(queue))
end

local function take_out(id, queue, i)
  local event = table.remove(queue, i)
  redis.call('ZREM', event[DEAD] and DEAD_LETTERS or LIVE, event_entry(id, event))
  redis.call('HDEL', outbox_key(id), event[SEQUENCE])
  return event
end

-- Write a new event. It replaces what nobody delivers of the replaceable ones, unless it is neither replaceable nor
-- the final one; a replaceable one goes on with the attempts and the due time of the oldest that it replaces.
local function publish(id, told, is_final, now)
  local sequence, body, url, callback_key_id, host, replaceable, not_before = unpack(told)
  local queue = read_queue(id) or {false}
  local attempts, due = 0, not_before
  if replaceable or is_final then
    for i = #queue, FIRST, -1 do
      local old = queue[i]
      if old[REPLACEABLE] and not old[DEAD] and not is_delivering(old, now) then
        take_out(id, queue, i)
        if replaceable then attempts, due = old[ATTEMPTS], old[DUE] end
      end
    end
  end
  local event = {sequence, host, replaceable, attempts, now, due, false, false, false, is_final and not replaceable}
  queue[#queue + 1] = event
  redis.call('HSET', outbox_key(id), sequence, cmsgpack.pack({body, url, callback_key_id}))
  redis.call('ZADD', LIVE, now, event_entry(id, event))
  write_queue(id, queue)
  rank_hosts()
end

-- Drop all events of a task.
local function drop_queue(id)
  local queue = read_queue(id)
  if not queue then return end
  for i = #queue, FIRST, -1 do take_out(id, queue, i) end
  write_queue(id, queue)
end

