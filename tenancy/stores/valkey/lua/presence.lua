-- Who decides on these counters, and whether this is still the store that was written to.
-- KEYS[1] sorted set of processes by the last microsecond each was heard; KEYS[2] the lineage this part was last seen with.
-- ARGV[1] our process; ARGV[2] microseconds after which a silent one is gone; ARGV[3] the lineage now, '' when not known.
-- Returns: processes now; 0 same lineage, 1 another one, 2 there was none.
local now = redis.call('TIME')
local us = tonumber(now[1]) * 1000000 + tonumber(now[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', us), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', us - tonumber(ARGV[2])))
local had = redis.call('GET', KEYS[2])
local changed = 0
if not had then changed = 2 elseif had ~= ARGV[3] and ARGV[3] ~= '' then changed = 1 end
if changed > 0 then redis.call('SET', KEYS[2], ARGV[3]) end
return { redis.call('ZCARD', KEYS[1]), changed }
