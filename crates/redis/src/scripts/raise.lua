-- raise: makes sure that every token given from now on is above this one.
--
-- KEYS  1 token, 2 names
-- ARGV  1 the token
-- gives {now, the last token now}

local last, wanted = tonumber(call('get', KEYS[1]) or 0), tonumber(ARGV[1])
if wanted > last then
  last = wanted
  call('set', KEYS[1], last)
  call('pexpireat', KEYS[1], math.ceil(math.max(last, now) / 1000) + 90000000)
  call('expire', KEYS[2], '259200') -- whoever moves the token sees to that: see ask_fast.lua
end
return {now, last}
