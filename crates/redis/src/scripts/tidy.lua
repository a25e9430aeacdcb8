-- tidy: forgets names whose records have expired with nobody there to remove them.
--
-- KEYS  1 names, then the locks
-- ARGV  the names, in the same order
-- gives {now, how many were forgotten}

local forgotten = 0
for n, name in ipairs(ARGV) do
  if call('exists', KEYS[n + 1]) == 0 then
    forgotten = forgotten + call('zrem', KEYS[1], name)
  end
end
return {now, forgotten}
