-- How a script begins that may answer with a record. What has ended it answers at once, before anything else is
-- defined: Lua defines anew each time, which takes longer than all the rest of a replay.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after a record expired, or was erased, its grant is remembered, in microseconds: a server that takes over
-- with a clock that is behind by less than this still gives a higher one.
local GRACE = 60000000

local VALUES = redis.call('HMGET', KEY, 'head', 'about', 'outcome')
local HEAD, ABOUT = VALUES[1], VALUES[2]

if HEAD then
    -- Completed, failed, unrecorded.
    local ended_at, retention = string.match(HEAD, '^[cfu]%l+ (%d+) (%d+) ')
    if ended_at and ended_at + retention > NOW then
        return { TIME[1], TIME[2], HEAD, ABOUT, VALUES[3] }
    end
end
