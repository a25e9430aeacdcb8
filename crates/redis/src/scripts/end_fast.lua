-- end: ends a claim, whatever it was: a hold, a place in line, or nothing at all.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token, 6 ended
-- ARGV  1 name, 2 publish or spublish, 3 id, 4 the least time of a hold, 5 how long no ask for it is granted any more, in ms
-- gives {now, whether it was there}
--
-- This is the short way: it is there alone.

local found = call('mget', KEYS[1])[1]
if found and string.sub(found, 1, 16) == ARGV[3] then
  local _, _, since, ends = struct.unpack('<Bddd', found, 17)
  if since + ARGV[4] <= now or ends <= now then
    call('del', KEYS[1])
    call('zrem', KEYS[4], ARGV[1])
    if ARGV[5] ~= '0' then
      call('set', KEYS[6], '', 'px', ARGV[5])
    end
    return {now, 1}
  end
end

