lock, line, held, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
last = tonumber(found[3] or 0)
open(found[1], ARGV[3])
if existed then
  sweep()
end
local answer
local mine = existed and ticket(ARGV[3])
if mine then
  if mine.stage == 1 then
    answer = {now, 'granted', mine.token, left(mine)}
  elseif mine.stage == 0 then
    answer = {now, 'queued', first == mine.id and 1 or 0, change_in()}
  else
    answer = {now, 'busy'}
  end
else
  local t = decode(ARGV[3], struct.pack('<Bdddd', 0, 0, now, now + ARGV[6], 0) .. ARGV[4])
  if not alone and taken == 0 and not first then
    kind, of = t.kind, t.of -- nobody is there: the newcomer decides
  end
  if kind ~= t.kind or (t.mode == 2 and of ~= t.of) then
    answer = {now, 'mismatch', kind, of}
  else
    t.number = number + 1
    if not first and admits(t) then
      number = t.number
      grant(t, t.ttl)
      answer = {now, 'granted', t.token, t.ttl}
    elseif ARGV[6] ~= '0' then
      number = t.number
      put(t)
      call('zadd', line, number, t.id .. ARGV[7])
      new_line = not first
      answer = {now, 'queued', first and 0 or 1, change_in()}
      first = first or t.id
    else
      answer = {now, 'busy'}
    end
  end
end
close()
tell()
return answer
