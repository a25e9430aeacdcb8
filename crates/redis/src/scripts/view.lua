-- view: reads records. Changes nothing, also not what time has ended: the reader leaves that out.
--
-- KEYS  the locks
-- gives {now, and for each record a string, its fields and their values, or nothing}, as line.lua says

local answer = {now}
for n, lock in ipairs(KEYS) do
  answer[n + 1] = call('mget', lock)[1] or call('hgetall', lock)
end
return answer
