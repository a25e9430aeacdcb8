-- The tickets of all who hold, or keep the name closed.
local function holders()
  local all = {}
  for _, id in ipairs(alone and {alone} or call('zrange', held, 0, -1)) do
    all[#all + 1] = ticket(id) or nil
  end
  return all
end

