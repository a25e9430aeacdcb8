-- touch: hears from waiters, each of which keeps its place for a while from now on, and says how they stand.
--
-- KEYS  1 names, 2 token, then for each waiter its lock, line and held
-- ARGV  1 how long they count as alive, 2 publish or spublish, then for each waiter its name, id and secret
-- gives {now, and for each waiter {0, first or not, change in or -1} if it waits, {1, token, since, left} if it was let in,
--       {2} if it is gone}

names, token_key = KEYS[1], KEYS[2]
call('expire', names, '259200')
local answer = {now}
for n = 1, (#ARGV - 2) / 3 do
  lock, line, held = KEYS[3 * n], KEYS[3 * n + 1], KEYS[3 * n + 2]
  name = ARGV[3 * n]
  local id = ARGV[3 * n + 1]
  local says = {2}
  open(call('mget', lock)[1], id)
  if existed then
    local mine = ticket(id)
    if mine and mine.stage == 0 then
      mine.ends = now + ARGV[1]
      put(mine)
      new_line = call('zadd', line, mine.number, id .. ARGV[3 * n + 2]) == 1 -- its line was thrown away
    end
    sweep()
    mine = ticket(id)
    if mine and mine.stage == 0 then
      says = {0, first == id and 1 or 0, change_in()}
    elseif mine and mine.stage == 1 then
      says = {1, mine.token, mine.since, left(mine)}
    end
    close()
  end
  answer[n + 1] = says
end
tell()
return answer
