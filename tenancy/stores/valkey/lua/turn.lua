-- Whose turn it is to compare counters with the ledger, and whether anybody has usage that the ledger does not know for long.
-- KEYS[1] the process whose turn it is; KEYS[2] there while some host's usage waits.
-- ARGV[1] our process; ARGV[2] milliseconds that a turn lasts without being asked for again; ARGV[3] milliseconds that waiting
-- usage is remembered for, 0 when ours does not wait.
-- Returns: 1 if it is our turn, else 0; 1 if usage waits somewhere, else 0.
if tonumber(ARGV[3]) > 0 then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3]) end
local whose = redis.call('GET', KEYS[1])
local ours = 0
if not whose or whose == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  ours = 1
end
return { ours, redis.call('EXISTS', KEYS[2]) }
