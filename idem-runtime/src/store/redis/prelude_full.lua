-- Prelude of the scripts that may return a record. A record that has ended is returned at once, before any function is
-- defined: Lua defines anew each time, which takes longer than all the rest of a replay.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after a record expired, or was erased, its fencing token is remembered, in microseconds: a server that takes over
-- with a clock that is behind by less than this still gives a higher one.
local GRACE = 60000000

local VALUES = redis.call('HMGET', KEY, 'status', 'request', 'outcome')
local STATUS, REQUEST, OUTCOME = VALUES[1], VALUES[2], VALUES[3]
-- The request of a claim; nil in a script that only reads.
local CLAIMED_REQUEST = ARGV[5]

-- The time and the status, the request unless it is that of the claim, the outcome. The fewer and shorter the
-- values, the less is copied: from Redis to Lua, back, and into the reply. A record without a
-- request must not look like one with the request of the claim.
local function record_reply()
    return { TIME[1] .. ' ' .. TIME[2] .. ' ' .. STATUS, REQUEST ~= CLAIMED_REQUEST and (REQUEST or ''), OUTCOME }
end

if STATUS then
    -- Completed, failed, unrecorded.
    local ended_at, retention = string.match(STATUS, '^[cfu]%l+ (%d+) (%d+) ')
    if ended_at and ended_at + retention > NOW then
        return record_reply()
    end
end
