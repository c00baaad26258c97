-- Functions that the other scripts share. Redis's clock stands still while a script runs.

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- rfc3339 formats microseconds since 1970 in UTC. Redis has no os.date for scripts.
-- Years begin in March here, so that the leap day is the last day of its year.
local function rfc3339(us)
  local ms = math.floor(us / 1000)
  local day = math.floor(ms / 86400000) + 719468
  local era = math.floor(day / 146097)
  local doe = day - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = era * 400 + yoe + (month <= 2 and 1 or 0)
  ms = ms % 86400000
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(ms / 3600000), math.floor(ms / 60000) % 60, math.floor(ms / 1000) % 60, ms % 1000)
end

-- count parses a number that a leader wrote; any other value is 0.
local function count(s)
  local n = tonumber(s or '')
  if n and n >= 0 and n <= 2 ^ 53 then
    return math.floor(n)
  end
  return 0
end

-- held returns the present meta hash. No leader wrote a key of another type, so it counts as absent.
local function held(key)
  local h = {}
  if redis.call('TYPE', key).ok == 'hash' then
    h = redis.call('HMGET', key, 'cluster', 'epoch', 'seq', 'leader', 'interval', 'updated_at', 'kinds')
  end
  return {
    cluster = h[1] or '', epoch = count(h[2]), seq = count(h[3]), leader = h[4] or '',
    interval = count(h[5]), updated_at = h[6] or '', kinds = h[7] or '',
  }
end

local function flat(m)
  return { m.cluster, m.epoch, m.seq, m.leader, m.interval, m.updated_at, m.kinds }
end
