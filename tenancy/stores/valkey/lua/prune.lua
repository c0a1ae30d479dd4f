-- Forgetting what no decision depends on: rates that are whole again, periods that are over, gauges at zero. Stands before
-- admit.lua. Of the decisions that make new fields every sixteenth looks at about 64 fields, so at about four old ones for each
-- new one: dead fields never outnumber the living for long, and an idle tag costs nothing.
local function prune(created)
  if created == 0 or now % 16 >= created then return end
  local found = redis.call('HSCAN', STATE, redis.call('HGET', STATE, '~') or '0', 'COUNT', 64)
  local items, dead = found[2], {}
  for i = 1, #items, 2 do
    local field, value, kind = items[i], tonumber(items[i + 1]), string.sub(items[i], 1, 2)
    local gone = false
    if kind == 'r:' then
      gone = value <= now
    elseif kind == 'g:' then
      gone = value == 0
    elseif kind == 'd:' or kind == 'm:' then
      local period = tonumber(string.match(field, '@(%d+)[sh]$'))
      gone = period < (kind == 'd:' and day or month)
    elseif kind == 'c:' then
      gone = tonumber(string.match(field, '@(%d+)[sh]$')) * 1000000 <= now
    end
    if gone and #dead < 1000 then dead[#dead + 1] = field end
  end
  if dead[1] then redis.call('HDEL', STATE, unpack(dead)) end
  redis.call('HSET', STATE, '~', found[1])
end
