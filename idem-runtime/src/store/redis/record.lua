-- What the scripts share. A record is one hash, so each script works on one key and a cluster can run it:
--
-- status   state, when it ended or -, retention, on_crash, end of the lease, claim id or -, fencing token, attempt,
--          when it was first claimed: words between blanks, since reading many fields takes longer than reading one
-- request  fingerprint, scope, operation, key, as the claim gave them
-- outcome  codec and payload, as the completion gave them
-- step:…   saved steps
--
-- Of a record that was erased there is `erased`, the fencing token.
--
-- Redis runs a script as one step, by one clock, so nothing can change between its reads and its writes. It does not
-- undo the writes of a script that fails: the first write of each is the one that may be refused for want of memory.
--
-- Lua's numbers are doubles, whole up to 2^53. Microseconds since 1970 stay below that until 2255, and the store cuts
-- durations so that their sums do as well. `tostring` would round them to 14 digits.

local STATES = {
    running = true, interrupted = true, released = true, completed = true, failed = true, unrecorded = true,
}
local ENDED = { completed = true, failed = true, unrecorded = true }

-- Before the names of the fields that hold saved steps.
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

-- Parses the status: nil where there is nothing, and an error where it is not ours. Counting what somebody
-- else wrote as absent would write over it.
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

-- Whether there is a record: what has expired and what was erased only remembers its fencing token.
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

-- Writes the status, and further fields as pairs, and lets Redis remove the key some time after it expires. HSET comes
-- first: it is what a full server refuses.
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

-- The fields that hold saved steps.
local function step_fields()
    local fields = {}
    for _, field in ipairs(redis.call('HKEYS', KEY)) do
        if string.sub(field, 1, #STEP) == STEP then
            fields[#fields + 1] = field
        end
    end
    return fields
end

-- Removes the record. Claimed again in the same tick, or by a clock that went back, the key would get a fencing token that was
-- given before, so a young fencing token leaves a trace that lives for the grace.
local function erase(record)
    local fencing_token = tonumber(record.fencing_token)
    redis.call('DEL', KEY)
    if fencing_token + GRACE >= NOW then
        redis.call('HSET', KEY, 'status', 'erased ' .. record.fencing_token)
        redis.call('PEXPIREAT', KEY, text(math.ceil((math.max(fencing_token, NOW) + GRACE) / 1000)))
    end
end

-- Whether the record is exactly as observed: state, claim id or '-', fencing token, lease end.
local function is_as_observed(record, state, claim_id, fencing_token, lease_until)
    return record.state == state
        and record.claim_id == claim_id
        and record.fencing_token == fencing_token
        and record.lease_until == lease_until
end
