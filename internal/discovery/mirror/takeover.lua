-- KEYS[1]: meta. ARGV[1]: the cluster that may claim from now on. ARGV[2]: '1' to have it claim anew.
-- Otherwise its own meta stays as it is, for its epoch fences. Returns 1 when something changed.

if held(KEYS[1]).cluster == ARGV[1] and ARGV[2] ~= '1' then
  return 0
end
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'cluster', ARGV[1], 'epoch', '0', 'seq', '0', 'leader', '')
return 1
