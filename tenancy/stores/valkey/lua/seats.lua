-- Which processes do the work of one group.
-- KEYS[1] sorted set of them by the last microsecond each was heard.
-- ARGV[1] our process; ARGV[2] microseconds after which a silent one is gone, 0 when we leave.
-- Returns: how many there are; how many of them come before us by name, which changes only when one comes or goes.
local after = tonumber(ARGV[2])
if after == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  local time = redis.call('TIME')
  local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  redis.call('ZADD', KEYS[1], string.format('%.0f', us), ARGV[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', us - after))
  redis.call('PEXPIRE', KEYS[1], math.ceil(after / 1000))
end
local rank = 0
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
for _, member in ipairs(members) do
  if member < ARGV[1] then rank = rank + 1 end
end
return { #members, rank }
