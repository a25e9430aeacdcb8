-- request: leaves a request with every holder to let go, and tells them.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token
-- ARGV  1 name, 2 publish or spublish, 3 what is asked (opaque)
-- gives {now, how many there were}

lock, line, held, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
open(call('mget', lock)[1], '')
if existed then
  first = true -- whoever is there stays: only a sweep finds a record idle
  for _, t in ipairs(holders()) do
    if t.stage == 1 then
      call('hset', lock, 'a' .. t.id, ARGV[3])
      mail[#mail + 1] = {t.inbox, 'a' .. t.id .. ARGV[3]}
    end
  end
  close()
end
tell()
return {now, #mail}
