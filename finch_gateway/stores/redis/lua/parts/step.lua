-- Stands before every script: one script is one step of the store.
--
-- KEYS[1] is the namespace's tag. The name of every key begins with it, so that all of them share one hash slot,
-- also those that only the step itself can name. ARGV[1] is a packed list of what the step is told, with false for
-- what is not there; raw bytes follow it, since a packed list from outside holds only text and numbers.
--
-- Instants are seconds. They go back out as text, since a reply holds whole numbers only. What is over by the
-- caller's clock counts as gone: a key's own expiry only frees the memory later.
local tag = KEYS[1]

local function is_over(instant, now)
  return instant <= now
end

-- Every digit of an instant; false stays false.
local function digits(instant)
  return instant and string.format('%.17g', instant)
end

-- With its memory full a server refuses a script's first write if it may grow, and none after it. What ends work or
-- keeps it alive begins with this, so that it is still taken.
local function despite_full_memory()
  redis.call('DEL', tag .. 'nothing')
end

-- Memory is freed this much later than asked for, so that callers whose clocks differ still agree.
local CLOCK_SPREAD_S = 10

local function ttl_ms(instant, now)
  return math.max(1, math.ceil((instant - now + CLOCK_SPREAD_S) * 1000))
end

