lock, line, held, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
open(found)
local mine = existed and ticket(ARGV[3])
if mine then
  local until_open = mine.since + ARGV[4]
  if mine.stage == 1 and until_open > now and mine.ends > now then
    mine.stage, mine.ends = 2, until_open
    put(mine)
    call('hdel', lock, 'a' .. mine.id)
  elseif mine.stage < 2 then
    drop(mine)
  end
end
if existed then
  sweep()
  close()
end
tell()
if ARGV[5] ~= '0' then
  call('set', KEYS[6], '', 'px', ARGV[5])
end
return {now, mine and 1 or 0}
