-- ask: lets a claim in, puts it in line, or neither. Asking again with the same id changes nothing.
--
-- KEYS  1 lock, 2 line, 3 held, 4 names, 5 token, 6 ended
-- ARGV  1 name, 2 publish or spublish, 3 id, 4 claim (see line.lua), 5 how long its key stays if it is alone, in ms
--       6 how long it may stand in line unheard, 0 if it may not, 7 the secret that a hand-over must know (see line.lua)
-- gives {now, 'granted', token, left} with what is left of its window, {now, 'queued', first or not, change in or -1},
--       {now, 'busy'}, {now, 'mismatch', kind, of} or {now, 'ended'};
--       or one number if that is the time, the token, and a whole ttl is left: a list costs as much as a command
--
-- These are the short ways. Nobody is there: then the record is one string, made and given its expiry in one command. Or one
-- is there alone and alive, and whoever asks would neither share with it nor wait: then the record stays that string. Or one
-- holds it exclusively and others wait already, so that whoever asks is behind them.

local found = call('mget', KEYS[1], KEYS[6], KEYS[5])
if found[2] then
  return {now, 'ended'}
end
local kind_wanted, mode_wanted, take, of_wanted, ttl, _, delay = struct.unpack('<BBI4I4ddd', ARGV[4])
if not found[1] then
  if take <= of_wanted then
    local last = tonumber(found[3] or 0)
    local token = last < now and now or last + 1
    local alone = ARGV[3] .. struct.pack('<Bdddd', 1, 1, now, now + ttl + delay, token) .. ARGV[4]
    if call('set', KEYS[1], alone, 'px', ARGV[5], 'nx') then
      call('incrby', KEYS[5], token - last)
      call('zadd', KEYS[4], '0', ARGV[1])
      -- What lasts for days need not be told so each time: when a new hour begins, and when the index does.
      if now - now % 3600000000 ~= last - last % 3600000000 then
        call('pexpireat', KEYS[5], math.ceil(token / 1000) + 90000000)
        call('expire', KEYS[4], '259200')
      elseif call('zcard', KEYS[4]) == 1 then
        call('expire', KEYS[4], '259200')
      end
      if token == now then
        return now
      end
      return {now, 'granted', token, ttl}
    end
    -- So it is a hash, or gone only now.
    local fields = call('hmget', KEYS[1], 'm', ARGV[3])
    if fields[1] and not fields[2] and ARGV[6] ~= '0' then
      local kind_there, taken, of, number, keeps, opens, alone = struct.unpack('<BI4I4dddI2c0', fields[1])
      local alive = now + ARGV[6]
      if alone ~= '' and opens > now and kind_there == kind_wanted and alive <= keeps then
        local head = call('zrange', KEYS[2], 0, 0)[1]
        local first = head and call('hget', KEYS[1], string.sub(head, 1, 16))
        if first and select(4, struct.unpack('<Bddd', first)) > now then
          call('zadd', KEYS[2], number + 1, ARGV[3] .. ARGV[7])
          call('hset', KEYS[1],
            ARGV[3], struct.pack('<Bdddd', 0, number + 1, now, alive, 0) .. ARGV[4],
            'm', struct.pack('<BI4I4dddI2c0', kind_there, taken, of, number + 1, keeps, opens, 16, alone))
          return {now, 'queued', 0, opens - now}
        end
      end
    end
  end
elseif ARGV[6] == '0' and string.sub(found[1], 1, 16) ~= ARGV[3] then
  local _, _, _, ends, _, kind_there, mode_there = struct.unpack('<BddddBB', found[1], 17)
  if ends > now and kind_there == kind_wanted and (mode_there == 0 or mode_wanted == 0) then
    return {now, 'busy'}
  end
end

