-- end: ends a claim, whatever it was: a hold, a place in line, or nothing at all.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token, 6 past, and 7 ended if it leaves a mark
-- ARGV  1 name, 2 publish or spublish, 3 id, and where they are not zero: 4 the least time of a hold,
--       5 for how long no ask for it is granted any more, in ms
-- gives {now, whether it was there}; or one number if it was: 1 where time did not matter, else now
--
-- These are the short ways, for a hold that may go whenever it likes. First: it is there alone.

local call = redis.call
local found = call('mget', KEYS[1], KEYS[5])
if found[1] and not ARGV[4] and string.sub(found[1], 1, 16) == ARGV[3] then
  call('del', KEYS[1])
  call('zrem', KEYS[4], ARGV[1])
  call('set', KEYS[6], string.sub(found[1], 42, 49), 'px', '5000') -- its token, as line.lua does it
  return 1
end

