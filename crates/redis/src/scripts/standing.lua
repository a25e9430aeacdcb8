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

