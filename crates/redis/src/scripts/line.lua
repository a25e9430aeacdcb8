-- The record of a name, for every verb that has more to do than the short way: who holds it, who waits, who is next.
-- crates/core/src/record.rs says what it means; this does the same, and a property test holds it to that.
--
-- `lock` is one of two things. While one claim holds a name and nothing else ever happened to it: a string, the claim's id
-- and then its ticket. MGET reads that, and gives nothing where there is something else. Otherwise a hash:
--   m          kind B, taken I4, of I4, last number d, when the keys expire d, when the exclusive hold ends d,
--              its id or nothing I2 + bytes
--   <id>       a ticket: stage B (0 waiting, 1 held, 2 closing), number d, since d, ends d, token d, and the claim as it came:
--              kind B, mode B (0 exclusive, 1 shared, 2 permits), take I4, of I4, ttl d, handover d, delay d,
--              inbox I2 + bytes, whose it is (opaque)
--   a<id>      what somebody asked of its holder (opaque)
-- `line` has each waiter's id and the secret that its client drew, in one member. No view reads that, so whoever may only
-- look at records cannot say what a hand-over says to the waiter.
--
-- All times are microseconds. An exclusive claim takes 0 of 0 and a shared one 1 of as many as there can be, so one rule
-- lets everybody in: nobody has it exclusively, and there is room.
--
-- A server that throws keys away may have thrown away tickets and kept a line, or the other way round. Who stands there
-- without a ticket is nobody; who holds is gathered from the tickets; who waits puts itself back when it is heard of.

local SLACK = 60000000 -- how much longer the keys stay than anything in them matters
local TICKET, META = '<BddddBBI4I4dddI2c0', '<BI4I4dddI2c0'
local publish = ARGV[2]
local names, token_key = KEYS[4], KEYS[5]
local lock, line, held, name, past -- the record at hand; `past` for verbs that end holds on somebody's word
local existed, kind, taken, of, number, keeps, opens, alone -- what is in it; `opens`: when the hold of `alone` ends
local tickets -- those that were read, by id
local was, longest, new_line, new_held -- to know at the end what must be written
local first -- who is first in line, as of the last sweep
local last, before -- the last token, and what it was before if it is a new one
local gone = 0 -- the highest token of those who held it and were dropped
local mail = {}

local function decode(id, packed)
  local stage, place, since, ends, token, sort, mode, take, room, ttl, handover, delay, inbox = struct.unpack(TICKET, packed)
  local t = {
    id = id, stage = stage, number = place, since = since, ends = ends, token = token, rest = string.sub(packed, 34),
    kind = sort, mode = mode, take = take, of = room, ttl = ttl, handover = handover, delay = delay, inbox = inbox,
  }
  tickets[id] = t
  return t
end

local function ticket(id)
  if tickets[id] == nil then
    local packed = call('hget', lock, id)
    tickets[id] = packed and decode(id, packed)
  end
  return tickets[id]
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
    end
  end
end

-- Takes a ticket out of the record, wherever it stands.
local function drop(t)
  tickets[t.id] = false
  if t.stage > 0 then
    gone = math.max(gone, t.token)
  end
  call('hdel', lock, t.id, 'a' .. t.id)
  if t.stage == 0 then
    call('zremrangebyscore', line, t.number, t.number)
  elseif t.mode == 0 then
    alone = nil
  else
    call('zrem', held, t.id)
    taken = taken - t.take
  end
end

local function admits(t)
  return not alone and taken + t.take <= t.of
end

local function next_token()
  if not before then
    last = last or tonumber(call('get', token_key) or 0)
    before = last
  end
  last = math.max(last + 1, now)
  return last
end

-- Lets a ticket in for so long.
local function grant(t, length)
  t.stage, t.since, t.ends, t.token = 1, now, now + length + t.delay, next_token()
  new_held = new_held or (taken == 0 and t.take > 0)
  taken = taken + t.take
  put(t)
end

-- Reads the record: `single` if it is one string, else a hash. Whatever it was, it is a hash from here on.
-- Reads the ticket of this id with it, if there is one.
local function open(single, id)
  existed, alone, taken, number, keeps, longest, first, was = true, nil, 0, 0, 0, 0, nil, nil
  tickets, new_line, new_held = {}, false, false
  if single then
    local t = decode(string.sub(single, 1, 16), string.sub(single, 17))
    call('del', lock)
    kind, of, taken, number = t.kind, t.of, t.take, 1
    put(t)
    return
  end
  local fields = call('hmget', lock, 'm', id)
  was = fields[1]
  if was then
    kind, taken, of, number, keeps, opens, alone = struct.unpack(META, was)
    if alone == '' then
      alone = nil
    end
    tickets[id] = fields[2] and decode(id, fields[2])
  else
    existed = false
  end
end

-- Finds those who share the name when `held` is gone: all that was in it is in the tickets too.
local function gather()
  local fields = call('hgetall', lock)
  taken, new_held = 0, true
  for n = 1, #fields, 2 do
    if #fields[n] == 16 then
      local t = tickets[fields[n]] or decode(fields[n], fields[n + 1])
      if t.stage > 0 and t.mode ~= 0 then
        taken = taken + t.take
        call('zadd', held, t.ends, t.id)
      end
    end
  end
end

-- Drops what time has ended and lets in who may now enter.
local function sweep()
  if alone then
    if opens <= now then
      local t = ticket(alone)
      if t then
        drop(t)
      end
      alone = nil
    end
  elseif taken > 0 then
    local ends = call('zrange', held, 0, 0, 'withscores')[2]
    if not ends then
      gather()
    end
    for _, id in ipairs(ends and tonumber(ends) > now and {} or call('zrangebyscore', held, '-inf', now)) do
      local t = ticket(id)
      if t then
        drop(t)
      else
        call('zrem', held, id)
      end
    end
  end
  repeat
    local heads = call('zrange', line, 0, 1)
    for _, head in ipairs(heads) do
      first = string.sub(head, 1, 16)
      local t = ticket(first)
      if not t then
        call('zrem', line, head)
      elseif t.ends <= now then
        drop(t)
      elseif admits(t) then
        call('zrem', line, head)
        grant(t, t.handover)
        mail[#mail + 1] = {t.inbox, 'g' .. head .. struct.pack('<dd', t.token, now)}
      else
        return
      end
    end
    first = nil
  until #heads < 2
end

-- Writes back what has changed, or removes a record that nobody is in.
local function close()
  if past and gone > 0 then
    call('set', past, struct.pack('<d', gone), 'px', '5000')
  end
  if not alone and taken == 0 and not first then
    if existed then
      call('del', lock, line, held)
      call('zrem', names, name)
    end
    return
  end
  if not existed then
    call('zadd', names, '0', name)
    call('expire', names, '259200')
  end
  local moved = longest > keeps
  if moved then
    keeps = longest + SLACK
    call('pexpireat', lock, math.ceil(keeps / 1000))
  end
  if moved or new_line then
    call('pexpireat', line, math.ceil(keeps / 1000))
  end
  if moved or new_held then
    call('pexpireat', held, math.ceil(keeps / 1000))
  end
  local is = struct.pack(META, kind, taken, of, number, keeps, alone and opens or 0, alone and 16 or 0, alone or '')
  if is ~= was then
    call('hset', lock, 'm', is)
  end
end

-- Comes last, when all records are as they should be: whoever is told finds it so.
local function tell()
  if before then
    call('incrby', token_key, last - before)
    -- What lasts for days need not be told so each time: when a new hour begins is enough.
    if now - now % 3600000000 ~= before - before % 3600000000 then
      call('pexpireat', token_key, math.ceil(last / 1000) + 90000000) -- not before the clock is past it
      call('expire', names, '259200')
    end
  end
  for _, letter in ipairs(mail) do
    call(publish, letter[1], letter[2])
  end
end

