-- Code shared by the scripts. A record is one hash, so each script works on one key and a cluster can run it:
--
-- status   state, when it ended or -, retention, on_crash, end of the lease, claim id or -, fencing token, attempt,
--          time of the first claim: words between blanks, because reading many fields takes longer than reading one
-- request  fingerprint, scope, operation, key, as in the claim
-- owner    label of the owner of the current or last attempt, '' if unknown
-- began    begin of that attempt; absent if it began with the first claim
-- history  earlier attempts, one line each
-- members  digests of the request's members; absent if the claim had none
-- outcome  codec and payload, as in the completion
-- step:…   saved steps
--
-- An erased record leaves a status of two words: `erased` and the fencing token.
--
-- Redis runs a script atomically, with one clock, so nothing can change between its reads and its writes. It does not
-- undo the writes of a script that fails: the first write of each script is the one that may be refused for lack of
-- memory.
--
-- Lua's numbers are doubles, exact up to 2^53. Microseconds since 1970 stay below that until 2255, and the store limits
-- durations so that their sums do as well. `tostring` would round them to 14 digits.

local STATES = {
    running = true, interrupted = true, released = true, completed = true, failed = true, unrecorded = true,
}
local ENDED = { completed = true, failed = true, unrecorded = true }

-- Prefix of the fields that hold saved steps.
local STEP = 'step:'

local function text(number)
    return string.format('%.0f', number)
end

local function corrupt()
    return redis.error_reply('IDEMCORRUPT status')
end

local function is_number(value)
    return value and #value <= 16 and string.find(value, '^%d+$')
end

-- Parses the status. Returns nil if there is none, and an error if this store did not write it. If a foreign value
-- counted as absent, a claim would overwrite it.
local function load()
    if not STATUS then
        if redis.call('EXISTS', KEY) == 1 then
            return nil, corrupt()
        end
        return nil, nil
    end
    local erased = string.match(STATUS, '^erased (%d+)$')
    if is_number(erased) then
        return { state = 'erased', fencing_token = erased }, nil
    end
    local state, ended_at, retention, on_crash, lease_until, claim_id, fencing_token, attempt, first_claimed_at =
        string.match(STATUS, '^(%l+) (%S+) (%d+) (%l+) (%d+) (%S+) (%d+) (%d+) (%d+)$')
    if not STATES[state] then
        return nil, corrupt()
    end
    for _, number in ipairs({ retention, lease_until, fencing_token, attempt, first_claimed_at }) do
        if not is_number(number) then
            return nil, corrupt()
        end
    end
    if (ENDED[state] or state == 'released') and not is_number(ended_at) then
        return nil, corrupt()
    end
    local record = {
        state = state, ended_at = ended_at, retention = retention, on_crash = on_crash, lease_until = lease_until,
        claim_id = claim_id, fencing_token = fencing_token, attempt = attempt, first_claimed_at = first_claimed_at,
    }
    return record, nil
end

-- Time when a record expires; nil if it stays until it is resolved.
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

-- Returns true if there is a record. An expired or erased record only remembers its fencing token.
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

local function next_fencing_token(record)
    if not record then
        return text(NOW)
    end
    return text(math.max(NOW, record.fencing_token + 1))
end

-- Writes the status, and further fields as pairs, and makes Redis remove the key some time after it expires. HSET comes
-- first: a full server refuses it.
local function write(record, ...)
    local status = table.concat({
        record.state, record.ended_at, record.retention, record.on_crash, record.lease_until, record.claim_id,
        record.fencing_token, record.attempt, record.first_claimed_at,
    }, ' ')
    redis.call('HSET', KEY, 'status', status, ...)
    local at = expires_at(record)
    if at then
        redis.call('PEXPIREAT', KEY, text(math.ceil((at + GRACE) / 1000)))
    else
        redis.call('PERSIST', KEY)
    end
    return status
end

-- Longest history of attempts, in bytes. What is over it is cut off at the front.
local MAX_HISTORY = 8192

-- Returns the history with a line for the attempt that ends now.
local function ended_attempt(record, how)
    local fields = redis.call('HMGET', KEY, 'owner', 'began', 'history')
    local line = table.concat({
        record.attempt, fields[2] or record.first_claimed_at, text(NOW), how, fields[1] or '',
    }, ' ')
    return string.sub((fields[3] or '') .. line .. '\n', -MAX_HISTORY)
end

-- Returns the fields that hold saved steps.
local function step_fields()
    local fields = {}
    for _, field in ipairs(redis.call('HKEYS', KEY)) do
        if string.sub(field, 1, #STEP) == STEP then
            fields[#fields + 1] = field
        end
    end
    return fields
end

-- Removes the record. If the key were claimed again in the same tick, or after the clock went back, it would get a
-- fencing token that was issued before. A young fencing token therefore leaves a tombstone for the grace period.
local function erase(record)
    local fencing_token = tonumber(record.fencing_token)
    redis.call('DEL', KEY)
    if fencing_token + GRACE >= NOW then
        redis.call('HSET', KEY, 'status', 'erased ' .. record.fencing_token)
        redis.call('PEXPIREAT', KEY, text(math.ceil((math.max(fencing_token, NOW) + GRACE) / 1000)))
    end
end

-- Returns true if the record equals the observation: state, claim id or '-', fencing token, lease end.
local function is_as_observed(record, state, claim_id, fencing_token, lease_until)
    return record.state == state
        and record.claim_id == claim_id
        and record.fencing_token == fencing_token
        and record.lease_until == lease_until
end
