-- fence: shows a token for a name. Accepted if nobody has shown a higher one; then lower ones are refused.
--
-- KEYS  1 fence
-- ARGV  1 the token, as 19 digits: texts of one length compare as numbers do, and a number here would lose digits,
--       2 if there is one, what must have been shown for the token to be plausible
-- gives 1, or the highest that was shown, as it is, or '' if none was: then the token was refused

local highest = redis.call('get', KEYS[1])
if highest and #highest ~= 19 then
  return redis.error_reply('ERR the key of the fence is not ours')
end
if highest == ARGV[1] then
  return 1
end
if highest and highest > ARGV[1] or ARGV[2] and (not highest or highest < ARGV[2]) then
  return highest or ''
end
redis.call('set', KEYS[1], ARGV[1])
return 1
