-- Stands in for a decision over 16 limits: reads and writes 16 fields of one hash, answers with 32 numbers.
local fields, out = {}, {}
for i = 1, #ARGV, 4 do fields[#fields + 1] = ARGV[i] end
local had = redis.call('HMGET', KEYS[1], unpack(fields))
local set = {}
for i = 1, #fields do
  local value = (tonumber(had[i]) or 0) + tonumber(ARGV[i * 4 - 2])
  set[#set + 1] = fields[i]
  set[#set + 1] = string.format('%.0f', value)
  out[#out + 1] = value
  out[#out + 1] = tonumber(ARGV[i * 4 - 1]) - value
end
redis.call('HSET', KEYS[1], unpack(set))
return out
