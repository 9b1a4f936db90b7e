-- Each process of a service adds the same names to the set.

return redis.call('SADD', KEYS[1], ARGV[1])
