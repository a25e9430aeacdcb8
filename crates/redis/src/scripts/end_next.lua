-- Second: it holds the name exclusively, and so will the first in line. What line.lua does, for that case alone.
if not found[1] and not ARGV[4] then
  local fields = call('hmget', KEYS[1], 'm', ARGV[3])
  if fields[2] and string.byte(fields[2]) == 1 then
    local kind, taken, of, number, keeps, _, alone = struct.unpack('<BI4I4dddI2c0', fields[1])
    local heads = alone == ARGV[3] and call('zrange', KEYS[2], 0, 1) or {}
    local head = heads[1]
    local id = head and string.sub(head, 1, 16)
    local tickets = head and call('hmget', KEYS[1], id, string.sub(heads[2] or head, 1, 16))
    if tickets and tickets[1] and tickets[2] then
      local _, place, _, alive, _, _, mode, _, _, _, handover, delay, inbox =
        struct.unpack('<BddddBBI4I4dddI2c0', tickets[1])
      local _, _, _, next_alive = struct.unpack('<Bddd', tickets[2])
      local ends, last = now + handover + delay, tonumber(found[2] or 0)
      if mode == 0 and alive > now and next_alive > now and ends <= keeps
        and now - now % 3600000000 == last - last % 3600000000 then
        local token = last < now and now or last + 1
        call('zrem', KEYS[2], head)
        call('hdel', KEYS[1], ARGV[3], 'a' .. ARGV[3])
        call('hset', KEYS[1],
          id, struct.pack('<Bdddd', 1, place, now, ends, token) .. string.sub(tickets[1], 34),
          'm', struct.pack('<BI4I4dddI2c0', kind, taken, of, number, keeps, ends, 16, id))
        call('incrby', KEYS[5], token - last)
        call(ARGV[2], inbox, 'g' .. head .. struct.pack('<dd', token, now))
        return now
      end
    end
  end
end

