-- KEYS: meta, services, the active set of each kind.
-- ARGV[1]: '1' to list members; otherwise only meta and the time are read.
-- Returns {microseconds, meta, services, {'ok' or 'wrong', members} of each kind}.

local function members(key)
  local t = redis.call('TYPE', key).ok
  if t == 'set' then
    return { 'ok', redis.call('SMEMBERS', key) }
  end
  return { t == 'none' and 'ok' or 'wrong', {} }
end

local reply = { now(), flat(held(KEYS[1])), {} }
if ARGV[1] == '1' then
  reply[3] = members(KEYS[2])[2]
  for i = 3, #KEYS do
    reply[i + 1] = members(KEYS[i])
  end
end
return reply
