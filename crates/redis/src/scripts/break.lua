-- break: ends holds by force, all or the one with this token, and tells them. To a holder that is a loss, so its lock-delay
-- keeps the name closed; breaking it a second time ends that too.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token, 6 past
-- ARGV  1 name, 2 publish or spublish, 3 a token, or '' for all
-- gives {now, how many there were}

lock, line, held, name, past = KEYS[1], KEYS[2], KEYS[3], ARGV[1], KEYS[6]
open(call('mget', lock)[1], '')
if not existed then
  return {now, 0}
end
for _, t in ipairs(holders()) do
  if ARGV[3] == '' or tonumber(ARGV[3]) == t.token then
    mail[#mail + 1] = {t.inbox, 'l' .. t.id}
    if t.stage == 1 and t.delay > 0 then
      t.stage, t.ends = 2, now + t.delay
      call('hdel', lock, 'a' .. t.id) -- first: see end.lua
      put(t)
    else
      drop(t)
    end
  end
end
local broken = #mail
sweep()
close()
tell()
return {now, broken}
