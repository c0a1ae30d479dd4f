-- What is counted for the groups of one tag. Stands before every other script; the twin of tenancy/quota.py, step by step.
--
-- Keys, all in the slot of the tag:
--   tg:{TAG}:s      hash: where every limit stands
--                     r:KEY          a rate: the time at which all of it is there again, microseconds
--                     d:KEY@PERIODs  a calendar counter: what is settled in the period; m: month, e: for ever, c: a dated one,
--                                    whose period is named by its end in seconds
--                     d:KEY@PERIODh  the same: what open holds hold of it
--                     g:KEY          a gauge: holds open now
--                     ~              where pruning goes on
--   tg:{TAG}:w:KEY  hash: a rolling window, in buckets of an hour; forgotten when the last one has left it
--                     HOURs, HOURh   what is settled and held in an hour, numbered since 1970
--                     s, h           the sums of all buckets
--                     f              the first hour: no bucket is older
--   tg:{TAG}:d      sorted set: open holds by the end of their lease, microseconds
--   tg:{TAG}:u      sorted set: end users with limits of their own by the time until which each counts as one, microseconds
--   tg:{TAG}:h:ID   one hold, packed: phase, until, day, month, lines, vector, delivered, hour. An open one has no expiry, because
--                   what it holds has to be given back by someone; a closed one expires.
--
-- Lines come packed by the caller, flat: how many rates, counters and gauges there are; then of each rate field, meter, amount,
-- burst, burst_us; of each counter field, kind (of a dated one the end of its period, which the caller works out: it knows the
-- rules of time zones), meter, amount; of each gauge field, amount. Where lines of an end user are among
-- them, which end in its label: the label, how long it counts as one, and how many there may be. Where there are rolling windows, which
-- come last: false in the place of a missing label, 0, 0; how many windows; of each key, days, meter, amount.
-- Every number is an integer below 2^53, which is what Lua's numbers hold exactly.
-- LEASE_US, SETTLED_US, REAPED_US, REAP_AT_MOST, MAX_RATE, MAX_AHEAD_US, MAX_COUNT and OTHERS are put before this text from Python.
local MINUTE_US, HOUR_US, DAY_US, HOURS_A_DAY = 60000000, 3600000000, 86400000000, 24
local OPEN, REAPED, SETTLED = 0, 1, 2
-- Of meters that come behind METERS_BEFORE, a vector of a process of an older version has no amounts.
local NOTHING, METERS, METERS_BEFORE = {0, 0, 0, 0, 0, 0, 0, 0, 0}, 9, 7
local STATE, DEADLINES = KEYS[1], KEYS[2]
local HOLDS = string.sub(STATE, 1, -2) .. 'h:'
local WINDOWS = string.sub(STATE, 1, -2) .. 'w:'
local LABELS = string.sub(STATE, 1, -2) .. 'u'
local floor, ceil, min, max, tonumber = math.floor, math.ceil, math.min, math.max, tonumber

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local day, hour = floor(now / DAY_US), floor(now / HOUR_US)

-- Months since year 0 of a day since 1970 (Howard Hinnant, chrono-compatible low-level date algorithms).
local function month_of(days)
  local z = days + 719468
  local era = floor(z / 146097)
  local doe = z - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  return (yoe + era * 400) * 12 + floor((5 * doy + 2) / 153) + 2
end
local month = month_of(day)

local function cost_us(n, amount)
  return ceil(min(n, MAX_RATE) * MINUTE_US / amount)
end

local function label_at(lines)
  return 4 + 5 * lines[1] + 4 * lines[2] + 2 * lines[3]
end

-- Whether there are as many end users as there may be without the one of these lines, which are then those that all beyond share.
local function crowded_out(lines)
  local at = label_at(lines)
  local label, most = lines[at], lines[at + 2]
  if not label or tonumber(redis.call('ZSCORE', LABELS, label) or 0) > now or redis.call('ZCARD', LABELS) < most then return false end
  redis.call('ZREMRANGEBYSCORE', LABELS, '-inf', now)
  if redis.call('ZCARD', LABELS) < most then return false end
  local tail = ':' .. label
  for i = 4, #lines do
    local field = lines[i]
    if type(field) == 'string' and string.sub(field, -#tail) == tail then
      lines[i] = string.sub(field, 1, -#label - 1) .. OTHERS
    end
  end
  return true
end

-- The end user of these lines counts as one; said again only when half of its time is over.
local function keep_label(lines)
  local at = label_at(lines)
  local label, keep_us = lines[at], lines[at + 1]
  if label and tonumber(redis.call('ZSCORE', LABELS, label) or 0) - now < keep_us / 2 then
    redis.call('ZADD', LABELS, min(now + keep_us, MAX_COUNT), label)
  end
end

-- The fields of lines, counters in the periods of a day and month; a counter has two.
local function fields_of(lines, its_day, its_month)
  local periods = {'@' .. its_day, '@' .. its_month, '@0'}
  local fields, n, i = {}, 0, 4
  for _ = 1, lines[1] do
    n = n + 1
    fields[n] = lines[i]
    i = i + 5
  end
  for _ = 1, lines[2] do
    local cell = lines[i] .. (periods[lines[i + 1]] or '@' .. lines[i + 1])
    fields[n + 1], fields[n + 2] = cell .. 's', cell .. 'h'
    n = n + 2
    i = i + 4
  end
  for _ = 1, lines[3] do
    n = n + 1
    fields[n] = lines[i]
    i = i + 2
  end
  return fields
end

local function read(fields)
  if not fields[1] then return {} end
  return redis.call('HMGET', STATE, unpack(fields))
end

local function write(changes)
  if changes[1] then redis.call('HSET', STATE, unpack(changes)) end
end

-- The rolling windows of lines: key, days, meter, amount, settled, held. Buckets that have left a window are forgotten first, at most
-- HOURS_AT_ONCE in one call of HMGET.
local NO_WINDOWS, HOURS_AT_ONCE = {}, 500
local function windows_of(lines)
  local at = label_at(lines) + 3
  if not lines[at] then return NO_WINDOWS end
  local windows = {}
  for n = 1, lines[at] do
    local i = at + 4 * n - 3
    local name, lowest = lines[i], hour - HOURS_A_DAY * lines[i + 1]
    local key = WINDOWS .. name
    local sums = redis.call('HMGET', key, 'f', 's', 'h')
    local first, settled, held = tonumber(sums[1] or hour), tonumber(sums[2] or 0), tonumber(sums[3] or 0)
    while first < lowest do
      local past, fields = min(first + HOURS_AT_ONCE, lowest), {}
      for gone = first, past - 1 do
        fields[#fields + 1], fields[#fields + 2] = gone .. 's', gone .. 'h'
      end
      local was = redis.call('HMGET', key, unpack(fields))
      for j = 1, #fields, 2 do
        settled, held = settled - tonumber(was[j] or 0), held - tonumber(was[j + 1] or 0)
      end
      redis.call('HDEL', key, unpack(fields))
      redis.call('HSET', key, 'f', past, 's', settled, 'h', held)
      first = past
    end
    windows[n] = {name, lines[i + 1], lines[i + 2], lines[i + 3], settled, held}
  end
  return windows
end

-- In the bucket of an hour put other amounts in the place of those that were counted. Comes after windows_of.
local function move_hour(window, its_hour, settled_was, settled_is, held_was, held_is)
  local days = window[2]
  if its_hour < hour - HOURS_A_DAY * days then return end
  local key = WINDOWS .. window[1]
  local found = redis.call('HMGET', key, 'f', 's', 'h', its_hour .. 's', its_hour .. 'h')
  local settled, held = tonumber(found[2] or 0), tonumber(found[3] or 0)
  local own_settled, own_held = tonumber(found[4] or 0), tonumber(found[5] or 0)
  local less = min(settled_was, own_settled)
  local more = min(settled_is, MAX_COUNT - settled + less) - less
  settled, own_settled = settled + more, own_settled + more
  less = min(held_was, own_held)
  more = min(held_is, MAX_COUNT - held + less) - less
  held, own_held = held + more, own_held + more
  local first = min(tonumber(found[1] or hour), its_hour)
  redis.call('HSET', key, 'f', first, 's', settled, 'h', held, its_hour .. 's', own_settled, its_hour .. 'h', own_held)
  if not found[4] then redis.call('PEXPIRE', key, (HOURS_A_DAY * days + 2) * HOUR_US / 1000) end
  return own_settled
end

-- The hour at which a rolling window has room for n, which is at most its amount, if nothing else comes; 0 for now.
local function fits_at(window, n)
  local over = window[5] + window[6] + n - window[4]
  if n > window[4] or over <= 0 then return 0 end
  local key = WINDOWS .. window[1]
  local first = tonumber(redis.call('HGET', key, 'f'))
  while first <= hour do
    local past, fields = min(first + HOURS_AT_ONCE, hour + 1), {}
    for one = first, past - 1 do
      fields[#fields + 1], fields[#fields + 2] = one .. 's', one .. 'h'
    end
    local found = redis.call('HMGET', key, unpack(fields))
    for j = 1, #fields, 2 do
      over = over - tonumber(found[j] or 0) - tonumber(found[j + 1] or 0)
      if over <= 0 then return first + (j - 1) / 2 + HOURS_A_DAY * window[2] + 1 end
    end
    first = past
  end
  return 0
end

local function whole(vector)
  if vector then
    for m = METERS_BEFORE + 1, METERS do vector[m] = vector[m] or 0 end
  end
  return vector
end

-- A hold that is not to be forgotten, or nil.
local function load_hold(key)
  local packed = redis.call('GET', key)
  if not packed then return nil end
  local hold = cmsgpack.unpack(packed)
  if hold[1] ~= OPEN and hold[2] <= now then return nil end
  whole(hold[6])
  whole(hold[7])
  return hold
end

local function keep_open(key, id, hold)
  hold[1], hold[2] = OPEN, now + LEASE_US
  redis.call('SET', key, cmsgpack.pack(hold))
  redis.call('ZADD', DEADLINES, hold[2], id)
end

local function keep_closed(key, id, hold, phase, for_us)
  hold[1], hold[2] = phase, now + for_us
  if phase == SETTLED then hold = {phase, hold[2]} end
  redis.call('SET', key, cmsgpack.pack(hold), 'PX', for_us / 1000)
  redis.call('ZREM', DEADLINES, id)
end

-- Put `new` in the place of what is counted for a hold. An open hold's amounts are held, others' are settled.
local function move(hold, new, before, after)
  local lines, old = cmsgpack.unpack(hold[5]), hold[6]
  local fields = fields_of(lines, hold[3], hold[4])
  local state = read(fields)
  local changes, dead, n, at, i = {}, {}, 0, 0, 4
  for _ = 1, lines[1] do
    at = at + 1
    local was, is, amount = old[lines[i + 1]], new[lines[i + 1]], lines[i + 2]
    if was ~= is and amount > 0 then
      local ahead = cost_us(is, amount) - cost_us(was, amount)
      local tat = tonumber(state[at] or 0)
      if tat > now then ahead = ahead + (tat - now) end
      if ahead > 0 then
        changes[n + 1], changes[n + 2] = fields[at], now + min(ahead, MAX_AHEAD_US)
        n = n + 2
      elseif state[at] then
        dead[#dead + 1] = fields[at]
      end
    end
    i = i + 5
  end
  for _ = 1, lines[2] do
    local was, is = old[lines[i + 2]], new[lines[i + 2]]
    local settled, held = tonumber(state[at + 1] or 0), tonumber(state[at + 2] or 0)
    if before == OPEN then held = held - was else settled = max(settled - was, 0) end
    if after == OPEN then held = min(held + is, MAX_COUNT) else settled = min(settled + is, MAX_COUNT) end
    changes[n + 1], changes[n + 2], changes[n + 3], changes[n + 4] = fields[at + 1], settled, fields[at + 2], held
    n = n + 4
    at = at + 2
    i = i + 4
  end
  local step = ((after == OPEN) and 1 or 0) - ((before == OPEN) and 1 or 0)
  if step ~= 0 then
    for _ = 1, lines[3] do
      at = at + 1
      changes[n + 1], changes[n + 2] = fields[at], tonumber(state[at] or 0) + step
      n = n + 2
    end
  end
  write(changes)
  if dead[1] then redis.call('HDEL', STATE, unpack(dead)) end
  for _, window in ipairs(windows_of(lines)) do
    local was, is = old[window[3]], new[window[3]]
    move_hour(window, hold[8], before == OPEN and 0 or was, after == OPEN and 0 or is, before == OPEN and was or 0, after == OPEN and is or 0)
  end
  hold[6] = new
end

-- Close what has expired with what it had delivered, at most REAP_AT_MOST.
local function reap()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, REAP_AT_MOST)) do
    local key = HOLDS .. id
    local hold = load_hold(key)
    if hold and hold[1] == OPEN then
      local charged = {}
      for m = 1, METERS do charged[m] = min(hold[7][m], hold[6][m]) end
      move(hold, charged, OPEN, REAPED)
      keep_closed(key, id, hold, REAPED, REAPED_US)
    else
      redis.call('ZREM', DEADLINES, id)
    end
  end
end

-- Where every line stands: of a rate the microseconds it is ahead, of a counter, gauge or rolling window how much is counted.
local function positions(lines, state, windows)
  local heres, at = {}, 0
  for n = 1, lines[1] do
    at = at + 1
    heres[n] = max(tonumber(state[at] or 0) - now, 0)
  end
  for _ = 1, lines[2] do
    heres[#heres + 1] = tonumber(state[at + 1] or 0) + tonumber(state[at + 2] or 0)
    at = at + 2
  end
  for _ = 1, lines[3] do
    at = at + 1
    heres[#heres + 1] = tonumber(state[at] or 0)
  end
  for _, window in ipairs(windows) do
    heres[#heres + 1] = window[5] + window[6]
  end
  return heres
end
