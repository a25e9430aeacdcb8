-- The record of a name, for every verb that has more to do than the short way: who holds it, who waits, who is next.
-- crates/core/src/record.rs says what it means; this does the same, and a property test holds it to that.
--
-- `lock` is one of two things. While one claim holds a name and nothing else ever happened to it: a string, the claim's id
-- and then its ticket. MGET reads that, and gives nothing where there is something else. Otherwise a hash:
--   m          kind B, taken I4, of I4, last number d, when the keys expire d, when the exclusive hold ends d, its id or ''
--   <id>       a ticket: stage B (0 waiting, 1 held, 2 closing), number d, since d, ends d, token d, and the claim as it came:
--              kind B, mode B (0 exclusive, 1 shared, 2 permits), take I4, of I4, ttl d, handover d, delay d,
--              inbox I2 + bytes, whose it is (opaque)
--   a<id>      what somebody asked of its holder (opaque)
-- All times are microseconds. An exclusive claim takes 0 of 0 and a shared one 1 of as many as there can be, so one rule
-- lets everybody in: nobody has it exclusively, and there is room.

local SLACK = 60000000
local TICKET, META = '<BddddBBI4I4dddI2c0', '<BI4I4dddI2c0'
local publish = ARGV[2]
local names, token_key = KEYS[4], KEYS[5]
local lock, line, held, name -- the record at hand
local existed, kind, taken, of, number, keeps, opens, alone -- what is in it; `opens`: when the hold of `alone` ends
local was, longest, added -- to know at the end what must be written
local first -- who is first in line, as of the last sweep
local last, given -- the last token, and whether it is a new one
local mail = {}

local function decode(id, packed)
  local t = {id = id, rest = string.sub(packed, 34)}
  t.stage, t.number, t.since, t.ends, t.token, t.kind, t.mode, t.take, t.of, t.ttl, t.handover, t.delay, t.inbox =
    struct.unpack(TICKET, packed)
  return t
end

local function ticket(id)
  local packed = call('hget', lock, id)
  return packed and decode(id, packed)
end

-- Writes a ticket, and where it stands among the holders if it is one.
local function put(t)
  call('hset', lock, t.id, struct.pack('<Bdddd', t.stage, t.number, t.since, t.ends, t.token) .. t.rest)
  if t.ends > longest then
    longest = t.ends
  end
  if t.stage > 0 then
    if t.mode == 0 then
      alone, opens = t.id, t.ends
    else
      call('zadd', held, t.ends, t.id)
      added = true
    end
  end
end

-- Takes a ticket out of the record, wherever it stands.
local function drop(t)
  call('hdel', lock, t.id, 'a' .. t.id)
  if t.stage == 0 then
    call('zrem', line, t.id)
  elseif t.mode == 0 then
    alone = nil
  else
    call('zrem', held, t.id)
    taken = taken - t.take
  end
end

-- The tickets of all who hold, or keep the name closed.
local function holders()
  local all = {}
  for n, id in ipairs(alone and {alone} or call('zrange', held, 0, -1)) do
    all[n] = ticket(id)
  end
  return all
end

local function admits(t)
  return not alone and taken + t.take <= t.of
end

local function next_token()
  if not last then
    last = tonumber(call('get', token_key) or 0)
  end
  last = math.max(last + 1, now)
  given = true
  return last
end

-- Lets a ticket in for so long.
local function grant(t, length)
  t.stage, t.since, t.ends, t.token = 1, now, now + length + t.delay, next_token()
  taken = taken + t.take
  put(t)
end

-- Reads the record: `single` if it is one string, else a hash. Whatever it was, it is a hash from here on.
local function open(single)
  existed, alone, taken, number, keeps, longest, added, first = true, nil, 0, 0, 0, 0, false, nil
  if single then
    local t = decode(string.sub(single, 1, 16), string.sub(single, 17))
    call('del', lock)
    was, kind, of, taken, number = nil, t.kind, t.of, t.take, 1
    put(t)
    return
  end
  was = call('hget', lock, 'm')
  if was then
    kind, taken, of, number, keeps, opens, alone = struct.unpack(META, was)
    if alone == '' then
      alone = nil
    end
  else
    existed = false
  end
end

-- Drops what time has ended and lets in who may now enter.
local function sweep()
  if alone then
    if opens <= now then
      drop(ticket(alone))
    end
  elseif taken > 0 then
    for _, id in ipairs(call('zrangebyscore', held, '-inf', now)) do
      drop(ticket(id))
    end
  end
  while true do
    first = call('zrange', line, 0, 0)[1]
    if not first then
      return
    end
    local t = ticket(first)
    if t.ends <= now then
      drop(t)
    elseif admits(t) then
      call('zrem', line, first)
      grant(t, t.handover)
      mail[#mail + 1] = {t.inbox, 'g' .. first .. struct.pack('<ddd', t.token, now, t.handover)}
    else
      return
    end
  end
end

-- When time alone may next let somebody in.
local function change_in()
  local ends = opens
  if not alone then
    ends = call('zrange', held, 0, 0, 'withscores')[2]
  end
  return ends and math.max(0, ends - now) or -1
end

-- What is left of the window that a holder may trust.
local function left(t)
  return math.max(0, t.ends - t.delay - now)
end

-- Writes back what has changed, or removes a record that nobody is in. Telling comes last: whoever is told finds it so.
local function close()
  if not alone and taken == 0 and not first then
    if existed then
      call('del', lock, line, held)
      call('zrem', names, name)
    end
  else
    if not existed then
      call('zadd', names, '0', name)
      call('expire', names, '259200')
    end
    local moved = longest > keeps
    if moved then
      keeps = longest + SLACK
    end
    local is = struct.pack(META, kind, taken, of, number, keeps, alone and opens or 0, alone and 16 or 0, alone or '')
    if is ~= was then
      call('hset', lock, 'm', is)
    end
    if moved or added then
      local at = math.ceil(keeps / 1000)
      if moved then
        call('pexpireat', lock, at)
      end
      call('pexpireat', line, at)
      call('pexpireat', held, at)
    end
  end
end

-- What is told when all records are as they should be.
local function tell()
  if given then
    call('set', token_key, last, 'px', '86400000')
  end
  for _, letter in ipairs(mail) do
    call(publish, letter[1], letter[2])
  end
end

