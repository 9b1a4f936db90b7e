-- Reads the entries of one record's audit. No entry changes, so the lists of several records need not be read at once.

return redis.call('LRANGE', KEYS[1], 0, -1)
