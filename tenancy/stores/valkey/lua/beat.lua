-- Holds of one tag that are alive: their leases begin anew, and what they hold becomes the worst case that is known by now. A
-- reaped hold is open again; a settled one stays as it is; one that is unknown is opened, if its lines are given.
-- KEYS: state, deadlines, then one per hold. ARGV of each hold: its id, delivered, at most, lines (empty for not given).
-- Answers the places, from 1, of unknown holds whose lines were not given.
local unknown = {}
for n = 3, #KEYS do
  local key, i = KEYS[n], (n - 3) * 4
  local id, at_most, given = ARGV[i + 1], cmsgpack.unpack(ARGV[i + 3]), ARGV[i + 4]
  local hold = load_hold(key)
  if hold then
    if hold[1] ~= SETTLED then
      move(hold, at_most, hold[1], OPEN)
      hold[7] = cmsgpack.unpack(ARGV[i + 2])
      keep_open(key, id, hold)
    end
  elseif given ~= '' then
    local lines = cmsgpack.unpack(given)
    if crowded_out(lines) then given = cmsgpack.pack(lines) else keep_label(lines) end
    hold = {OPEN, 0, day, month, given, NOTHING, cmsgpack.unpack(ARGV[i + 2]), hour}
    move(hold, at_most, REAPED, OPEN)
    keep_open(key, id, hold)
  else
    unknown[#unknown + 1] = n - 2
  end
end
return unknown
