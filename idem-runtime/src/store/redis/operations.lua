-- Names are added meanwhile, and never change.

return redis.call('SMEMBERS', KEYS[1])
