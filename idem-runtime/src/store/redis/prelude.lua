-- Prelude of the scripts that read only the status.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after its expiry or erasure a record's fencing token is remembered, in microseconds. After a failover, a
-- server whose clock is behind by less than this still issues a higher token.
local GRACE = 60000000

local STATUS = redis.call('HGET', KEY, 'status')
