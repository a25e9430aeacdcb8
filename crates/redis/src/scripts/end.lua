lock, line, held, name, past = KEYS[1], KEYS[2], KEYS[3], ARGV[1], KEYS[6]
last = tonumber(found[2] or 0)
open(found[1], ARGV[3])
local mine = existed and ticket(ARGV[3])
local was_there = mine and mine.stage < 2 and 1 or 0 -- what was broken, and only keeps the name closed, was not
if mine then
  -- A clock that was set back may show less than when the hold began; then it began now.
  local until_open = math.min(mine.since, now) + (ARGV[4] or 0)
  if mine.stage == 1 and until_open > now and mine.ends > now then
    mine.stage, mine.ends = 2, until_open
    call('hdel', lock, 'a' .. mine.id) -- first: a full server that has let this through lets the rest through too
    put(mine)
  elseif mine.stage < 2 then
    drop(mine)
  end
end
if existed then
  sweep()
  close()
end
tell()
if ARGV[5] then
  call('del', KEYS[7]) -- as above, where nothing else was there to be written
  call('set', KEYS[7], '', 'px', ARGV[5])
end
return {now, was_there}
