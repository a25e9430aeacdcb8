-- renew: extends holds by their ttl, those that are still held. Changes nothing else: nobody is let in here.
--
-- KEYS  1 names, then for each claim its lock, line and held
-- ARGV  for each claim its id
-- gives {now, and for each claim 0 if it is lost, 1 if it is held, or what somebody asked of its holder}

local TICKET, META, SLACK = '<BddddBBI4I4ddd', '<BI4I4dddI2c0', 60000000
local answer = {now}
call('expire', KEYS[1], '259200')
for n, id in ipairs(ARGV) do
  local lock = KEYS[3 * n - 1]
  local single = call('mget', lock)[1]
  local packed, meta, asked = nil, nil, nil
  if single then
    packed = string.sub(single, 1, 16) == id and string.sub(single, 17)
  else
    packed, meta, asked = unpack(call('hmget', lock, id, 'm', 'a' .. id))
  end
  answer[n + 1] = 0
  if packed then
    local stage, number, since, ends, token, _, mode, _, _, ttl, _, delay = struct.unpack(TICKET, packed)
    if stage == 1 and ends > now then
      ends = now + ttl + delay
      packed = struct.pack('<Bdddd', stage, number, since, ends, token) .. string.sub(packed, 34)
      if single then
        call('set', lock, id .. packed, 'px', math.ceil((ttl + delay + SLACK) / 1000))
      else
        local kind, taken, of, numbers, keeps, opens, alone = struct.unpack(META, meta)
        if mode == 0 then
          opens = ends
        else
          call('zadd', KEYS[3 * n + 1], ends, id)
        end
        if ends > keeps then
          keeps = ends + SLACK
          for key = 3 * n - 1, 3 * n + 1 do
            call('pexpireat', KEYS[key], math.ceil(keeps / 1000))
          end
        end
        call('hset', lock, id, packed, 'm', struct.pack(META, kind, taken, of, numbers, keeps, opens, #alone, alone))
      end
      answer[n + 1] = asked or 1
    end
  end
end
return answer
