-- A task is one hash, so that no step rewrites what it does not change:
--   'h'  its head, the packed list below
--   'r'  the engine's record, new with every commit
--   'd'  the dispatch, which never changes
-- The head; what is not there is false.
--   READY    since when it waits for a worker
--   LEASE    the instant the holder's lease ends
--   HOLDER   the operation that took the lease; true once the lease was given back
--   OPS      the operations of the latest commits, newest first
--   KEEP     once it has ended, the instant until which it is kept
local LISTING, INVOCATION, KEY_ID, CREATED, STATE, READY, FINAL, DEADLINE, VERSION, EPOCH, ATTEMPT, LEASE, HOLDER,
  OPS, KEEP = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15

-- As many commits may come between a commit and its repeat after a lost answer.
local OPS_KNOWN = 4

-- The indexes over tasks; the name of one that is kept per listing or key id ends with it.
local READY_SINCE = tag .. 'ready:'        -- tasks of a listing that wait, by since when
local LEASED_UNTIL = tag .. 'leased:'      -- held tasks of a listing, by their lease's end
local OPEN_UNTIL = tag .. 'deadlines'      -- open tasks, by deadline
local OPEN_BY_KEY = tag .. 'open'          -- how many tasks are open, by key id
local HELD_BY = tag .. 'holders'           -- operation that took a lease -> the task it holds
local LISTINGS = tag .. 'listings'         -- every listing that had a task
local MADE_OPEN = tag .. 'made:open:'      -- open tasks of a listing, by when they were admitted
local MADE_ENDED = tag .. 'made:ended:'    -- ended ones
local ENDED_UNTIL = tag .. 'ended'         -- ended tasks, by how long they are kept; an entry names the listing too

local function task_key(id)
  return tag .. 'k' .. id
end

local function read_head(id)
  local packed = redis.call('HGET', task_key(id), 'h')
  return packed and cmsgpack.unpack(packed)
end

local function is_gone(head, now)
  return head[KEEP] and is_over(head[KEEP], now)
end

-- True where this epoch holds the task. That its lease ended does not matter as long as nobody took it over.
local function holds(head, epoch)
  return head and head[LEASE] and head[EPOCH] == epoch
end

-- A task as the store hands it out.
local function row(id, head)
  local blobs = redis.call('HMGET', task_key(id), 'd', 'r')
  return {
    id, head[LISTING], head[INVOCATION], head[KEY_ID], blobs[1], blobs[2], head[STATE], head[READY] and 1 or 0,
    head[FINAL] and 1 or 0, digits(head[DEADLINE]), head[VERSION], head[EPOCH], head[ATTEMPT], digits(head[LEASE]),
  }
end

local function place(index, id, was, is)
  if was == is then return end
  if is then redis.call('ZADD', index, is, id) else redis.call('ZREM', index, id) end
end

local function ended_entry(id, listing)
  return #listing .. ':' .. listing .. id
end

-- Where a task stands in the indexes that a step may move it in.
local function places(head)
  return {
    ready = head[READY],
    leased = head[LEASE],
    open = not head[FINAL] and head[DEADLINE],
    holder = head[LEASE] and head[HOLDER],
  }
end

-- Move a task in the indexes to where its head says.
local function reindex(id, head, was)
  local is = places(head)
  place(OPEN_UNTIL, id, was.open, is.open)
  place(LEASED_UNTIL .. head[LISTING], id, was.leased, is.leased)
  place(READY_SINCE .. head[LISTING], id, was.ready, is.ready)
  if was.holder ~= is.holder then
    if was.holder then redis.call('HDEL', HELD_BY, was.holder) end
    if is.holder then redis.call('HSET', HELD_BY, is.holder, id) end
  end
end

local function write_head(id, head)
  redis.call('HSET', task_key(id), 'h', cmsgpack.pack(head))
end

-- Purging takes an ended task out of every index; the server's own expiry only follows where nobody purges.
local PURGED_FIRST_S = 86400

local function expire_ended(key, keep_until, now)
  redis.call('PEXPIRE', key, ttl_ms(keep_until + PURGED_FIRST_S, now))
end

-- Note that a task has ended.
local function retire(id, head, now)
  if redis.call('HINCRBY', OPEN_BY_KEY, head[KEY_ID], -1) < 1 then redis.call('HDEL', OPEN_BY_KEY, head[KEY_ID]) end
  redis.call('ZREM', MADE_OPEN .. head[LISTING], id)
  redis.call('ZADD', MADE_ENDED .. head[LISTING], head[CREATED], id)
  redis.call('ZADD', ENDED_UNTIL, head[KEEP], ended_entry(id, head[LISTING]))
  expire_ended(task_key(id), head[KEEP], now)
end

