-- One decision over every line of a group: all of them are read and decided before any is written.
-- KEYS: state, deadlines, hold. ARGV: the hold's id, lines, vector; where dated counters are among the lines, from when and until when
-- their periods are the current ones.
-- Answers, packed: verdict, now, and of every line where it stands: after the decision (1 admitted), or without one (0 refused,
-- 2 known already, 3 nothing is decided because the periods are not the current ones; 4 more where its end user is beyond the bound). Where a line refuses: of each rolling window the hour at which it has room, too. What is told about it is worked out by the caller with the reference's own functions.
if ARGV[4] and (now < tonumber(ARGV[4]) or now >= tonumber(ARGV[5])) then return cmsgpack.pack({3, now}) end
reap()
local lines, vector, packed, more = cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3]), ARGV[2], 0
if crowded_out(lines) then packed, more = cmsgpack.pack(lines), 4 end
local fields = fields_of(lines, day, month)
local state, windows = read(fields), windows_of(lines)
if load_hold(KEYS[3]) then
  return cmsgpack.pack({2 + more, now, unpack(positions(lines, state, windows))})
end

local reply, changes, n, r, at, i, created = {1 + more, now}, {}, 0, 2, 0, 4, 0
local refused = false
for _ = 1, lines[1] do
  at = at + 1
  r = r + 1
  local amount, wants = lines[i + 2], vector[lines[i + 1]]
  if amount == 0 or wants > lines[i + 3] then
    refused = true
    break
  end
  local after = ceil(wants * MINUTE_US / amount)
  local tat = tonumber(state[at] or 0)
  if tat > now then after = after + (tat - now) end
  if wants > 0 and after > lines[i + 4] then
    refused = true
    break
  end
  if after > 0 then
    changes[n + 1], changes[n + 2] = fields[at], now + after
    n = n + 2
    if not state[at] then created = created + 1 end
  end
  reply[r] = after
  i = i + 5
end
if not refused then
  for _ = 1, lines[2] do
    r = r + 1
    local wants, amount, held = vector[lines[i + 2]], lines[i + 3], tonumber(state[at + 2] or 0)
    local after = wants + tonumber(state[at + 1] or 0) + held
    if amount == 0 or (wants > 0 and after > amount) then
      refused = true
      break
    end
    changes[n + 1], changes[n + 2] = fields[at + 2], held + wants
    n = n + 2
    if not state[at + 2] then created = created + 2 end
    reply[r] = after
    at = at + 2
    i = i + 4
  end
end
if not refused then
  for _ = 1, lines[3] do
    at = at + 1
    r = r + 1
    local after = tonumber(state[at] or 0) + 1
    if after > lines[i + 1] then
      refused = true
      break
    end
    changes[n + 1], changes[n + 2] = fields[at], after
    n = n + 2
    if not state[at] then created = created + 1 end
    reply[r] = after
    i = i + 2
  end
end
if not refused then
  for _, window in ipairs(windows) do
    r = r + 1
    local amount, after = window[4], vector[window[3]] + window[5] + window[6]
    if amount == 0 or (vector[window[3]] > 0 and after > amount) then
      refused = true
      break
    end
    reply[r] = after
  end
end
if refused then
  local told = {0 + more, now, unpack(positions(lines, state, windows))}
  for _, window in ipairs(windows) do
    told[#told + 1] = fits_at(window, vector[window[3]])
  end
  return cmsgpack.pack(told)
end
write(changes)
for _, window in ipairs(windows) do
  move_hour(window, hour, 0, 0, 0, vector[window[3]])
end
if more == 0 then keep_label(lines) end
keep_open(KEYS[3], ARGV[1], {OPEN, 0, day, month, packed, vector, {vector[1], 0, 0, 0, 0, 0, 0, 0, 0}, hour})
prune(created)
return cmsgpack.pack(reply)
