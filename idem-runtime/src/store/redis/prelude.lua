-- Prelude of the scripts that read the status alone.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after a record expired, or was erased, its fencing token is remembered, in microseconds: a server that takes over
-- with a clock that is behind by less than this still gives a higher one.
local GRACE = 60000000

local STATUS = redis.call('HGET', KEY, 'status')
