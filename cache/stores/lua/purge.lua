-- Removes some of one owner's entries, a page of rows at a time.
-- KEYS: index, rows. ARGV: cursor; model, namespace and user that entries must have, empty for any; the time in milliseconds before which
-- they were kept, -1 for any.
-- Answers: the next cursor, 0 at the end, and how many were removed.
prune()
local model, namespace, user, before = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local page = redis.call('HSCAN', ROWS, ARGV[1], 'COUNT', FORGOTTEN_AT_ONCE)
local removed = 0
for at = 1, #page[2], 2 do
  local name = page[2][at]
  if name ~= 'bytes' then
    local row = cmsgpack.unpack(page[2][at + 1])
    if (model == '' or row[2] == model) and (namespace == '' or row[3] == namespace) and (user == '' or row[4] == user)
      and (before < 0 or row[5] < before) then
      forget(name)
      removed = removed + 1
    end
  end
end
finish()
return {tonumber(page[1]), removed}
