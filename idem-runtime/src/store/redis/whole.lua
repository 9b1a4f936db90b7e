-- How a script begins that may answer with a record. What has ended it answers at once, before anything else is
-- defined: Lua defines anew each time, which takes longer than all the rest of a replay.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after a record expired, or was erased, its grant is remembered, in microseconds: a server that takes over
-- with a clock that is behind by less than this still gives a higher one.
local GRACE = 60000000

local VALUES = redis.call('HMGET', KEY, 'head', 'about', 'outcome')
local HEAD, ABOUT, OUTCOME = VALUES[1], VALUES[2], VALUES[3]
-- What a claim is about. Whoever only looks does not say.
local ASKED = ARGV[5]

-- The time and the head, what the record is about unless that is what was asked, the outcome. The fewer and shorter the
-- values, the less is copied: from Redis to Lua, back, and into the reply. A record that is about nothing at all must
-- not look like what was asked.
local function found()
    return { TIME[1] .. ' ' .. TIME[2] .. ' ' .. HEAD, ABOUT ~= ASKED and (ABOUT or ''), OUTCOME }
end

if HEAD then
    -- Completed, failed, unrecorded.
    local ended_at, retention = string.match(HEAD, '^[cfu]%l+ (%d+) (%d+) ')
    if ended_at and ended_at + retention > NOW then
        return found()
    end
end
