-- Prelude of the scripts that may return a record. An ended record is returned immediately, before any function is
-- defined: Lua defines functions at each run, which takes longer than all the rest of a replay.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after its expiry or erasure a record's fencing token is remembered, in microseconds. After a failover, a
-- server whose clock is behind by less than this still issues a higher token.
local GRACE = 60000000

local VALUES = redis.call('HMGET', KEY, 'status', 'request', 'outcome')
local STATUS, REQUEST, OUTCOME = VALUES[1], VALUES[2], VALUES[3]
-- Request of a claim; nil in a script that only reads.
local CLAIMED_REQUEST = ARGV[5]

-- Returns the time and the status, the request unless it equals that of the claim, and the outcome. Fewer and shorter
-- values save copies from Redis to Lua, back, and into the reply. A record without a request must not look like one
-- with the request of the claim.
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
