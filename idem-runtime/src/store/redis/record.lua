-- Code shared by the scripts that change a record. A record is one string, so each script works on one key and a cluster
-- can run it. `layout.rs` describes the string: a head of fixed length, then sections.
--
-- Redis runs a script atomically, with one clock, so nothing can change between its reads and its writes. It does not
-- undo the writes of a script that fails: the first write of each script is the one that may be refused for lack of
-- memory.
--
-- Lua's numbers are doubles, exact up to 2^53. Microseconds since 1970 stay below that until 2255, and the store limits
-- durations so that their sums do as well. `tostring` would round them to 14 digits.

local KEY = KEYS[1]
local TIME = redis.call('TIME')
-- The clock of the store has whole milliseconds, because times of a record follow from the expiry of its key.
local NOW = TIME[1] * 1000000 + TIME[2] - TIME[2] % 1000

-- Minimum time for which a record's fencing token is remembered after the record has ended, lapsed or been erased, in
-- microseconds. After a failover, a server whose clock is behind by less than this still issues a higher token.
local GRACE = 60000000

local HEAD_FORMAT, HEAD_LENGTH = '>BBc1c1c1c16i8i8i8i8I4', 57
local MAGIC, LAYOUT = 254, 1
-- Stands for no claim id, which the kind 'n' says.
local NO_CLAIM_ID = string.rep('\0', 16)
local HEAD = redis.call('GETRANGE', KEY, 0, HEAD_LENGTH - 1)
local EXPIRES = redis.call('PEXPIRETIME', KEY)

-- Running, interrupted, released, completed, failed, unrecorded.
local STATES = { r = true, i = true, l = true, c = true, f = true, u = true }
local ENDED = { c = true, f = true, u = true }
local ON_CRASH = { r = true, f = true, c = true }
-- Order of the sections: request, label of the owner, digests of the members, begin of the attempt, history. Steps and
-- the payload follow.
local SECTIONS = { 'q', 'o', 'm', 'b', 'h' }

local function text(number)
    return string.format('%.0f', number)
end

local function corrupt()
    return redis.error_reply('IDEMCORRUPT record')
end

local function is_number(value)
    return value >= 0 and value < 9007199254740992
end

-- Time from the end of the lease, or of the record, to the expiry of the key, in milliseconds.
local function keep(retention)
    return math.floor(math.max(retention, GRACE) / 1000)
end

-- Parses the head. Returns nil if there is no record, and an error if this store did not write it. If a foreign value
-- counted as absent, a claim would overwrite it.
local function load()
    if HEAD == '' then
        if redis.call('EXISTS', KEY) == 1 then
            return nil, corrupt()
        end
        return nil, nil
    end
    local magic, layout = string.byte(HEAD, 1, 2)
    if magic ~= MAGIC then
        return nil, corrupt()
    end
    if layout ~= LAYOUT then
        return nil, redis.error_reply('IDEMLAYOUT unknown')
    end
    if #HEAD < HEAD_LENGTH then
        return nil, corrupt()
    end
    local record = {}
    magic, layout, record.state, record.on_crash, record.kind, record.claim_id, record.fencing_token,
        record.first_claimed_at, record.lease_until, record.retention, record.attempt = struct.unpack(HEAD_FORMAT, HEAD)
    for _, number in ipairs({ record.fencing_token, record.first_claimed_at, record.lease_until, record.retention }) do
        if not is_number(number) then
            return nil, corrupt()
        end
    end
    if record.state == 'e' then
        record.claim_id = nil
        return record, nil
    end
    local is_over = ENDED[record.state] or record.state == 'l'
    if not STATES[record.state] or not ON_CRASH[record.on_crash] or record.attempt == 0 or is_over and EXPIRES < 0 then
        return nil, corrupt()
    end
    if record.kind == 'f' then
        -- A first claim that was written without a script: its times follow from the expiry that it set.
        if record.state ~= 'r' or record.on_crash ~= 'r' or EXPIRES < 0 then
            return nil, corrupt()
        end
        local lease = record.lease_until
        local claimed_at = (EXPIRES - keep(record.retention) - math.floor(lease / 1000)) * 1000
        record.fencing_token, record.first_claimed_at, record.lease_until = claimed_at, claimed_at, claimed_at + lease
    elseif record.kind == 'n' then
        record.claim_id = nil
    elseif record.kind ~= 'o' then
        return nil, corrupt()
    end
    if is_over then
        record.ended_at = (EXPIRES - keep(record.retention)) * 1000
    end
    return record, nil
end

-- Time when a record expires; nil if it stays until it is resolved.
local function expires_at(record)
    if record.state == 'r' then
        if record.on_crash == 'r' then
            return record.lease_until + record.retention
        end
        return nil
    end
    if record.state == 'i' then
        return nil
    end
    return record.ended_at + record.retention
end

-- Returns true if there is a record. An expired or erased record only remembers its fencing token.
local function is_live(record)
    if not record or record.state == 'e' then
        return false
    end
    local at = expires_at(record)
    return not at or at > NOW
end

local function is_lapsed(record)
    return record.state == 'r' and record.lease_until <= NOW
end

-- Returns true if the record has this claim id and this fencing token. The token of a first claim that was written
-- without a script moves with the expiry of its key, which `MIGRATE` shifts by the time of the transfer. The claim id
-- alone proves that claim, so its owner tells the token that it was granted.
local function is_owned(record, claim_id, fencing_token)
    if record.claim_id ~= claim_id then
        return false
    end
    fencing_token = tonumber(fencing_token)
    if record.kind == 'f' and fencing_token % 1000 == 0 and math.abs(fencing_token - record.fencing_token) <= GRACE then
        record.fencing_token, record.first_claimed_at = fencing_token, fencing_token
    end
    return record.fencing_token == fencing_token
end

local function next_fencing_token(record)
    if not record then
        return NOW
    end
    return math.max(NOW, record.fencing_token + 1)
end

local function head(record)
    local kind, claim_id = 'o', record.claim_id
    if not claim_id then
        kind, claim_id = 'n', NO_CLAIM_ID
    end
    return struct.pack(HEAD_FORMAT, MAGIC, LAYOUT, record.state, record.on_crash, kind, claim_id, record.fencing_token,
        record.first_claimed_at, record.lease_until, record.retention, record.attempt)
end

-- Expiry of the key, in milliseconds; nil if it has none.
local function expiry(record)
    if record.state == 'i' or record.state == 'r' and record.on_crash ~= 'r' then
        return nil
    end
    local from = record.state == 'r' and record.lease_until or record.ended_at
    return text(math.floor(from / 1000) + keep(record.retention))
end

-- Writes the record with these sections.
local function write(record, sections)
    local at = expiry(record)
    if at then
        redis.call('SET', KEY, head(record) .. sections, 'PXAT', at)
    else
        redis.call('SET', KEY, head(record) .. sections)
    end
end

-- Writes the head of an existing record, whose sections stay. SETRANGE comes first: a full server refuses it.
local function write_head(record)
    redis.call('SETRANGE', KEY, 0, head(record))
    local at = expiry(record)
    if at then
        redis.call('PEXPIREAT', KEY, at)
    else
        redis.call('PERSIST', KEY)
    end
end

local function section(tag, content)
    return struct.pack('>c1I4', tag, #content) .. content
end

-- Reads the sections: the contents by tag, and in `rest` those of the steps and of the payload as they are stored.
local function read_sections()
    local stored = redis.call('GETRANGE', KEY, HEAD_LENGTH, -1)
    local sections, rest, at = {}, {}, 1
    while at <= #stored do
        if at + 4 > #stored then
            return nil, corrupt()
        end
        local tag, length = struct.unpack('>c1I4', stored, at)
        local stop = at + 4 + length
        if stop > #stored then
            return nil, corrupt()
        end
        if tag == 's' or tag == 'p' then
            rest[#rest + 1] = string.sub(stored, at, stop)
        else
            sections[tag] = string.sub(stored, at + 5, stop)
        end
        at = stop + 1
    end
    sections.rest = table.concat(rest)
    return sections, nil
end

local function join_sections(sections)
    local joined = {}
    for _, tag in ipairs(SECTIONS) do
        if sections[tag] and sections[tag] ~= '' then
            joined[#joined + 1] = section(tag, sections[tag])
        end
    end
    joined[#joined + 1] = sections.rest
    return table.concat(joined)
end

-- Longest history of attempts, in bytes. What is over it is cut off at the front.
local MAX_HISTORY = 8192

-- Adds a line to the history for the attempt that ends now.
local function end_attempt(record, sections, how)
    local line = table.concat({
        text(record.attempt), sections.b or text(record.first_claimed_at), text(NOW), how, sections.o or '',
    }, ' ')
    sections.h = string.sub((sections.h or '') .. line .. '\n', -MAX_HISTORY)
end

-- Removes the record. If the key were claimed again in the same tick, or after the clock went back, it would get a
-- fencing token that was issued before. A young fencing token therefore leaves a tombstone for the grace period.
local function erase(record)
    local fencing_token = record.fencing_token
    redis.call('DEL', KEY)
    if fencing_token + GRACE >= NOW then
        record.state, record.claim_id = 'e', nil
        local at = math.ceil((math.max(fencing_token, NOW) + GRACE) / 1000)
        redis.call('SET', KEY, head(record), 'PXAT', text(at))
    end
end

-- Returns true if the record equals the observation: state, claim id or '', fencing token, lease end.
local function is_as_observed(record, state, claim_id, fencing_token, lease_until)
    return record.state == state
        and (record.claim_id or '') == claim_id
        and record.fencing_token == tonumber(fencing_token)
        and record.lease_until == tonumber(lease_until)
end
