-- downgrade: makes a reader of the writer that holds an rw lock, and lets other readers in. It
-- keeps its token and its window. A reader stays a reader, so that a copy which arrives late
-- changes nothing.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token
-- ARGV  1 name, 2 publish or spublish, 3 id
-- gives {now, 1}, or {now, 0} if it is not held any more

lock, line, held, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
open(call('mget', lock)[1], ARGV[3])
if not existed then
  return {now, 0}
end
sweep()
local mine, reads = ticket(ARGV[3]), 0
if mine and mine.stage == 1 and mine.mode < 2 then
  reads = 1
  if mine.mode == 0 then
    mine.mode, mine.take, mine.of = 1, 1, 4294967295
    mine.rest = struct.pack('<BBI4I4', mine.kind, mine.mode, mine.take, mine.of) .. string.sub(mine.rest, 11)
    alone, taken, new_held = nil, mine.take, true
    put(mine)
    sweep()
  end
end
close()
tell()
return {now, reads}
