-- Keeps answers of one owner. Those whose time ends first make room.
-- KEYS: index, rows, entries. ARGV: the most bytes of all entries, then of each entry its value, the end of its time in milliseconds, and
-- its row. Answers how many had to make room.
prune()
local most, i, evicted = tonumber(ARGV[1]), 2, 0
for at = 3, #KEYS do
  local name, value, until_ms, row = KEYS[at], ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  i = i + 3
  local size = cmsgpack.unpack(row)[1]
  forget(name)
  if until_ms > now and size <= most then
    redis.call('SET', name, value, 'PXAT', until_ms)
    redis.call('ZADD', INDEX, until_ms, name)
    redis.call('HSET', ROWS, name, row)
    bytes = bytes + size
  end
end
while bytes > most and evicted < FORGOTTEN_AT_ONCE do
  local first = redis.call('ZRANGE', INDEX, 0, 0)[1]
  if not first then break end
  forget(first)
  evicted = evicted + 1
end
finish()
return evicted
