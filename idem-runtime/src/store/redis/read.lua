-- Reads a record, the time of reading and the expiry, atomically: with separate reads, a lease that was renewed could look
-- lapsed.

return { redis.call('TIME'), redis.call('PEXPIRETIME', KEYS[1]), redis.call('GET', KEYS[1]) }
