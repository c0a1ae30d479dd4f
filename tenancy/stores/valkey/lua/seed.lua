-- What is settled of calendar counters, set from outside.
-- Expired holds are closed first: the ledger has what they used, so that it would be counted twice when they are closed later.
-- KEYS: state, deadlines. ARGV: packed and flat, of each counter its field, kind (0 for a dated one, the days of a rolling window below 0), period, what should be settled, and what that is to take
-- the place of (-1: the larger of both stays).
-- Answers, packed: what is settled of each now, -1 where the period is not the current one (of a dated one: is over; of a rolling window, of which an hour is set: lies outside of it).
reap()
local function seed_hour(name, days, its_hour, settled, instead_of)
  if its_hour < hour - HOURS_A_DAY * days or its_hour > hour then return -1 end
  local had = tonumber(redis.call('HGET', WINDOWS .. name, its_hour .. 's') or 0)
  local new = settled
  if instead_of < 0 then new = max(had, settled) elseif instead_of ~= had then new = had end
  if new == had then return had end
  local window = windows_of({0, 0, 0, false, 0, 0, 1, name, days, 1, 0})[1]
  return move_hour(window, its_hour, had, new, 0, 0)
end

local seeds = cmsgpack.unpack(ARGV[1])
local periods = {day, month, 0}
local fields = {}
for i = 1, #seeds, 5 do
  fields[#fields + 1] = seeds[i] .. '@' .. seeds[i + 2] .. 's'
end
local state, changes, reply, created = read(fields), {}, {}, 0
for n, field in ipairs(fields) do
  local i = n * 5 - 4
  local kind, period = seeds[i + 1], seeds[i + 2]
  if kind < 0 then
    reply[n] = seed_hour(seeds[i], -kind, period, seeds[i + 3], seeds[i + 4])
  elseif kind == 0 and period * 1000000 <= now or kind ~= 0 and periods[kind] ~= period then
    reply[n] = -1
  else
    local had, new = tonumber(state[n] or 0), min(seeds[i + 3], MAX_COUNT)
    if seeds[i + 4] < 0 then new = max(had, new) elseif seeds[i + 4] ~= had then new = had end
    if new ~= had then
      changes[#changes + 1], changes[#changes + 2] = field, new
      if not state[n] then created = created + 1 end
    end
    reply[n] = new
  end
end
write(changes)
prune(created)
return cmsgpack.pack(reply)
