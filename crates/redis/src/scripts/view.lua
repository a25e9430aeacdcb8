-- view: reads records. Changes nothing, also not what time has ended: the reader leaves that out.
--
-- KEYS  for each name its lock and past
-- gives {now, and for each name its record (a string, its fields and their values, or nothing) and its past}, as line.lua says

local answer = {now}
for n = 1, #KEYS, 2 do
  local found = call('mget', KEYS[n], KEYS[n + 1])
  answer[n + 1], answer[n + 2] = found[1] or call('hgetall', KEYS[n]), found[2]
end
return answer
