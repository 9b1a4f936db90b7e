-- What every script begins with. A record is one hash, so each script works on one key and a cluster can run it.
--
-- Redis runs a script as one step, by one clock, so nothing can change between its reads and its writes. It does not
-- undo the writes of a script that fails: the first write of each is the one that may be refused for want of memory.
--
-- Lua's numbers are doubles, whole up to 2^53. Microseconds since 1970 stay below that until 2255, and the store cuts
-- durations so that their sums do as well. `tostring` would round them to 14 digits.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

-- How long after a record expired, or was erased, its grant is remembered, in microseconds: a server that takes over
-- with a clock that is behind by less than this still gives a higher one.
local GRACE = 60000000

local HEAD = {
    'state', 'token', 'grant', 'attempt', 'lease_until', 'retention', 'on_crash', 'first_claimed_at', 'ended_at',
    'fingerprint',
}
local BODY = { 'scope', 'operation', 'key', 'codec', 'payload' }

local STATES = {
    running = true, interrupted = true, released = true, completed = true, failed = true, unrecorded = true,
}
local ENDED = { completed = true, failed = true, unrecorded = true }

local function text(number)
    return string.format('%.0f', number)
end

local function foreign(field)
    return redis.error_reply('IDEMCORRUPT ' .. field)
end

local function is_number(value)
    return value and #value <= 16 and string.find(value, '^%d+$')
end

-- The head of what is there: nil where there is nothing, and an error where it is not ours. Counting what somebody
-- else wrote as absent would write over it.
local function load()
    local values = redis.call('HMGET', KEY, unpack(HEAD))
    local record = {}
    for at, field in ipairs(HEAD) do
        record[field] = values[at]
    end
    if not record.state then
        if redis.call('EXISTS', KEY) == 1 then
            return nil, foreign('state')
        end
        return nil, nil
    end
    if not is_number(record.grant) then
        return nil, foreign('grant')
    end
    if record.state == 'erased' then
        return record, nil
    end
    if not STATES[record.state] then
        return nil, foreign('state')
    end
    for _, field in ipairs({ 'attempt', 'lease_until', 'retention', 'first_claimed_at' }) do
        if not is_number(record[field]) then
            return nil, foreign(field)
        end
    end
    if (ENDED[record.state] or record.state == 'released') and not is_number(record.ended_at) then
        return nil, foreign('ended_at')
    end
    return record, nil
end

-- When a record expires; nil where it stays until somebody resolves it.
local function expires_at(record)
    if record.state == 'running' then
        if record.on_crash == 'rerun' then
            return record.lease_until + record.retention
        end
        return nil
    end
    if record.state == 'interrupted' then
        return nil
    end
    return record.ended_at + record.retention
end

-- Whether there is a record: what has expired and what was erased only remembers its grant.
local function is_live(record)
    if not record or record.state == 'erased' then
        return false
    end
    local at = expires_at(record)
    return not at or at > NOW
end

local function is_lapsed(record)
    return record.state == 'running' and tonumber(record.lease_until) <= NOW
end

local function next_grant(record)
    if not record then
        return text(NOW)
    end
    return text(math.max(NOW, record.grant + 1))
end

-- Writes fields, as pairs, and lets Redis remove the key some time after it expires by them. HSET comes first: it is
-- what a full server refuses.
local function write(record, fields)
    redis.call('HSET', KEY, unpack(fields))
    for at = 1, #fields, 2 do
        record[fields[at]] = fields[at + 1]
    end
    local at = expires_at(record)
    if at then
        redis.call('PEXPIREAT', KEY, text(math.ceil((at + GRACE) / 1000)))
    else
        redis.call('PERSIST', KEY)
    end
end

-- Removes the record. Claimed again in the same tick, or by a clock that went back, the key would get a grant that was
-- given before, so a young grant leaves a trace that lives for the grace.
local function forget(record)
    local grant = tonumber(record.grant)
    redis.call('DEL', KEY)
    if grant + GRACE >= NOW then
        redis.call('HSET', KEY, 'state', 'erased', 'grant', record.grant)
        redis.call('PEXPIREAT', KEY, text(math.ceil((math.max(grant, NOW) + GRACE) / 1000)))
    end
end

-- Whether the record is exactly as observed: state, token or '', grant, lease end.
local function is_as_observed(record, state, token, grant, lease_until)
    return record.state == state
        and (record.token or '') == token
        and record.grant == grant
        and record.lease_until == lease_until
end

-- The whole record, behind the word that says what it is an answer to, and the time.
local function whole(word, record)
    local reply = { word, text(NOW) }
    for _, field in ipairs(HEAD) do
        reply[#reply + 1] = record[field]
    end
    for _, value in ipairs(redis.call('HMGET', KEY, unpack(BODY))) do
        reply[#reply + 1] = value
    end
    return reply
end
