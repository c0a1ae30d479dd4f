-- The kept answers of one owner.
-- KEYS: entries. Answers one string: of each entry its length in 4 bytes and its value; of one that is not kept the length 0.
local parts = {}
for at, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  value = value or ''
  parts[at] = struct.pack('>I4', #value) .. value
end
return table.concat(parts)
