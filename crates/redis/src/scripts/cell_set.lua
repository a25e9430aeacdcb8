-- cell_set: writes a cell, or removes it, if its version is still the expected one. Versions are tokens.
--
-- KEYS  1 cell, 2 token, 3 names
-- ARGV  1 the expected version, 0 if there must be none, 2 the value; without it the cell is removed
-- gives {now, version}, or {now} if it was another version

if tonumber(call('hget', KEYS[1], 'version') or 0) ~= tonumber(ARGV[1]) then
  return {now}
end
local version = math.max((call('get', KEYS[2]) or 0) + 1, ARGV[1] + 1, now)
call('set', KEYS[2], version)
call('pexpireat', KEYS[2], math.ceil(version / 1000) + 90000000)
call('expire', KEYS[3], '259200') -- whoever moves the token sees to that: see ask_fast.lua
if ARGV[2] then
  call('hset', KEYS[1], 'value', ARGV[2], 'version', version)
else
  call('del', KEYS[1])
end
return {now, version}
