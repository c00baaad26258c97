-- KEYS[1]: meta. ARGV[1]: the cluster that may claim from now on. ARGV[2]: '1' to make it claim again.
-- Otherwise its own meta is kept, because its epoch is a fence. Returns 1 if something changed.

if held(KEYS[1]).cluster == ARGV[1] and ARGV[2] ~= '1' then
  return 0
end
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'cluster', ARGV[1], 'epoch', '0', 'seq', '0', 'leader', '')
return 1
