-- raise: makes sure that every token given from now on is above this one.
--
-- KEYS  1 token
-- ARGV  1 the token
-- gives {now, the last token now}

local last = math.max(tonumber(call('get', KEYS[1]) or 0), tonumber(ARGV[1]))
call('set', KEYS[1], last, 'px', '86400000')
return {now, last}
