-- A page of one owner's entries, those whose time ends last first. Nothing is changed.
-- KEYS: index, rows. ARGV: how many entries to pass over, how many to look at.
-- Answers of each entry its name, the end of its time in milliseconds, and its row; empty behind the last.
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local page, found = redis.call('ZREVRANGE', KEYS[1], first, first + count - 1, 'WITHSCORES'), {}
for at = 1, #page, 2 do
  found[#found + 1] = {page[at], page[at + 1], redis.call('HGET', KEYS[2], page[at]) or ''}
end
return found
