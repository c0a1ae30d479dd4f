-- What the scripts share. All keys of one owner have its name as their hash tag, so they lie on one node of a cluster.
--   tga:{OWNER}:KEY   one sealed answer; it expires by itself
--   tga:{OWNER}       sorted set: the names of its entries by the end of their time in milliseconds
--   tga:{OWNER}:rows  hash: of each entry its row, packed: bytes, model, namespace, user, when it was kept (ms), writer; and as `bytes` the sum
local INDEX, ROWS = KEYS[1], KEYS[2]
local FORGOTTEN_AT_ONCE = 200
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bytes = tonumber(redis.call('HGET', ROWS, 'bytes') or 0)

local function forget(name)
  local row = redis.call('HGET', ROWS, name)
  if row then
    bytes = bytes - cmsgpack.unpack(row)[1]
    redis.call('HDEL', ROWS, name)
  end
  redis.call('ZREM', INDEX, name)
  redis.call('UNLINK', name)
end

-- Entries whose time is over are gone already; what is known of them goes here, some at a time.
local function prune()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', now, 'LIMIT', 0, FORGOTTEN_AT_ONCE)) do
    forget(name)
  end
end

-- Writes the sum down. The index and the rows live as long as their last entry.
local function finish()
  local last = redis.call('ZRANGE', INDEX, -1, -1, 'WITHSCORES')
  if last[2] then
    redis.call('HSET', ROWS, 'bytes', bytes)
    redis.call('PEXPIREAT', INDEX, last[2])
    redis.call('PEXPIREAT', ROWS, last[2])
  else
    redis.call('UNLINK', INDEX, ROWS)
  end
end
