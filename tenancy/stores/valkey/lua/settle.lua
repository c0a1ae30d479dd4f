-- A hold ends with what it used. Only the first settlement counts; of a reaped hold the difference is charged.
-- KEYS: state, deadlines, hold. ARGV: the hold's id, vector, and 1 to forget the hold at once (an admission that another group
-- refused: the same id may ask again).
-- Answers 1 if that changed anything.
local hold = load_hold(KEYS[3])
if not hold or hold[1] == SETTLED then return 0 end
move(hold, cmsgpack.unpack(ARGV[2]), hold[1], SETTLED)
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[3])
  redis.call('ZREM', DEADLINES, ARGV[1])
else
  keep_closed(KEYS[3], ARGV[1], hold, SETTLED, SETTLED_US)
end
return 1
