-- KEYS: meta, services, the active set of each of req.sets, the status hash of each of req.status.
-- ARGV[1]: req, JSON. ARGV[2]… are raw strings, because a foreign id may have any bytes. For each set they are id, url
-- and reason of each member to add, then of each member to remove. For each status they are its id, and name and value
-- of its fields.
-- Returns {outcome, microseconds, meta before the write, {size of each set, -1 for one of the wrong type}}.
--
-- All checks precede the first write, because Redis does not roll a failed script back.

local req = cjson.decode(ARGV[1])
local meta, services = KEYS[1], KEYS[2]
local us, was = now(), held(KEYS[1])

local function done(outcome, sizes)
  return { outcome, us, flat(was), sizes or {} }
end

if was.cluster ~= '' and was.cluster ~= req.cluster then
  return done('foreign')
elseif was.epoch > req.epoch or was.epoch == req.epoch and was.leader ~= req.leader then
  return done('older')
elseif was.epoch == req.epoch and was.seq > req.seq then
  return done('older')
elseif was.epoch == req.epoch and was.seq == req.seq then
  return done('duplicate')
elseif us > req.not_after then
  return done('expired')
elseif req.op ~= 'claim' and (was.epoch ~= req.base_epoch or was.seq ~= req.base_seq) then
  return done('mismatch')
end

local arg = 1
local function take()
  arg = arg + 1
  return ARGV[arg]
end

-- keep deletes a key of the wrong type. No reader could use it, so no member is lost.
local function keep(key, want)
  local t = redis.call('TYPE', key).ok
  if t ~= want and t ~= 'none' then
    redis.call('DEL', key)
  end
end

-- batched passes 1,000 ids at a time, because unpack is limited to about 8,000.
local function batched(command, key, ids)
  for i = 1, #ids, 1000 do
    redis.call(command, key, unpack(ids, i, math.min(i + 999, #ids)))
  end
end

local at = rfc3339(us)
local stamp = string.format(',"epoch":%.0f,"seq":%.0f,"at":"%s"', req.epoch, req.seq, at)

local function publish(event, id, url, kind, reason)
  redis.call('PUBLISH', req.channel, '{"type":"' .. event .. '","id":' .. cjson.encode(id) .. ',"url":' ..
    cjson.encode(url) .. ',"kind":' .. cjson.encode(kind) .. stamp .. ',"reason":' .. cjson.encode(reason) .. '}')
end

keep(meta, 'hash')
redis.call('HSET', meta, 'cluster', req.cluster, 'epoch', string.format('%.0f', req.epoch),
  'seq', string.format('%.0f', req.seq), 'leader', req.leader,
  'interval', string.format('%.0f', req.interval), 'updated_at', at)
if req.kinds ~= '' then
  redis.call('HSET', meta, 'kinds', req.kinds)
end
if req.op == 'claim' then
  publish('leader', req.leader, '', '', '')
end

local function taken(n)
  local ids, members = {}, {}
  for i = 1, n do
    ids[i] = take()
    members[i] = { ids[i], take(), take() }
  end
  return ids, members
end

local sizes = {}
for i, set in ipairs(req.sets) do
  local key = KEYS[2 + i]
  local added, news = taken(set.add)
  local removed, losses = taken(set.remove)
  if set.add > 0 or set.replace then
    keep(key, 'set')
  end
  local size = redis.pcall('SCARD', key)
  if type(size) == 'number' then
    batched('SADD', key, added)
    batched('SREM', key, removed)
    size = redis.call('SCARD', key)
  else
    size = -1
  end
  sizes[i] = size
  for _, m in ipairs(news) do
    publish('added', m[1], m[2], set.kind, m[3])
  end
  for _, m in ipairs(losses) do
    publish('removed', m[1], m[2], set.kind, m[3])
  end
end

if #req.status > 0 then
  keep(services, 'set')
end
for i, status in ipairs(req.status) do
  local key, id = KEYS[2 + #req.sets + i], take()
  if status.fields == 0 then
    redis.call('DEL', key)
    redis.call('SREM', services, id)
  else
    local fields = {}
    for j = 1, status.fields do
      fields[j] = take()
    end
    -- The fields begin with id, kind and url. A hash of the same kind and url keeps an earlier leader's results.
    local has = status.inherit and redis.pcall('HMGET', key, 'kind', 'url')
    if not (has and has[1] == fields[4] and has[2] == fields[6]) then
      if type(redis.pcall('HSET', key, unpack(fields))) ~= 'number' then
        redis.call('DEL', key)
        redis.call('HSET', key, unpack(fields))
      end
    end
    redis.call('SADD', services, id)
  end
end

return done('applied', sizes)
