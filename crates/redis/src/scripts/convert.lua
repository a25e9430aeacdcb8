-- convert: changes the mode of a hold in place. A writer becomes a reader at any time and lets other readers in; a reader
-- becomes the writer only while it is alone inside, and gets a new token. A request that comes so late that the hold has
-- another token by now changes nothing; record.rs says why an upgrade gets a new one also if it was the writer still.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token
-- ARGV  1 name, 2 publish or spublish, 3 id, 4 mode, 5 take, 6 of, 7 the token that its holder knows
-- gives {now, token, left}, or {now} if it cannot be had

lock, line, held, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
open(call('mget', lock)[1], ARGV[3])
if not existed then
  return {now}
end
sweep()
local answer = {now}
local mine = ticket(ARGV[3])
if mine and mine.stage == 1 then
  local mode, take, of = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local same = mine.mode == mode and mine.take == take and mine.of == of
  local known = mine.token == tonumber(ARGV[7])
  local down = known and mine.mode == 0 and mode == 1
  local up = known and mine.mode == 1 and mode == 0 and taken == 1
  if same or down or up then
    if up or (same and known and mode == 0) then
      -- A reader that came later and has gone may have shown a higher token than ours to the resource.
      mine.token = next_token()
    end
    if up then
      call('zrem', held, mine.id)
    elseif down then
      alone, new_held = nil, true
    end
    if not same then
      taken = take
      mine.mode, mine.take, mine.of = mode, take, of
      mine.rest = struct.pack('<BBI4I4', mine.kind, mode, take, of) .. string.sub(mine.rest, 11)
    end
    mine.ends = now + mine.ttl + mine.delay -- the grant that comes of it has a whole window
    put(mine)
    answer = {now, mine.token, mine.ttl}
    sweep()
  end
end
close()
tell()
return answer
