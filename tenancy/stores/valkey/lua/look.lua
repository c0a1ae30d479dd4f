-- How every line of a group stands, for operators.
-- KEYS: state, deadlines. ARGV: lines.
-- Answers, packed: now; of each rate the microseconds it is ahead; of each counter what is settled and what is held; of each
-- gauge how many are open; of each rolling window what is settled and what is held.
reap()
local lines = cmsgpack.unpack(ARGV[1])
crowded_out(lines)
local state = read(fields_of(lines, day, month))
local reply = {now}
for at = 1, lines[1] do
  reply[#reply + 1] = max(tonumber(state[at] or 0) - now, 0)
end
for at = lines[1] + 1, #state do
  reply[#reply + 1] = tonumber(state[at] or 0)
end
for _, window in ipairs(windows_of(lines)) do
  reply[#reply + 1], reply[#reply + 2] = window[5], window[6]
end
return cmsgpack.pack(reply)
