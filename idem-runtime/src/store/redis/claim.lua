-- Claims, or takes over if the record equals the observation, atomically: two callers who both saw no record, or both
-- saw the same lapsed lease, are served one after the other, and the second sees the writes of the first. A claim that
-- is not granted writes nothing. A granted claim returns the status.
--
-- ARGV: claim id, lease, retention, on_crash, request, label of the owner or '', digests of the members or ''
-- and for a takeover the observation: state, claim id or '-', fencing token, lease end

local claim_id, lease, retention = ARGV[1], ARGV[2], ARGV[3]
local takes_over = #ARGV > 7

local record, problem = load()
if problem then
    return problem
end
local lease_until = text(NOW + lease)

-- Writes the digests of the members with the request that they are of. Most claims have none.
local function set_members()
    if ARGV[7] ~= '' then
        redis.call('HSET', KEY, 'members', ARGV[7])
    elseif record then
        redis.call('HDEL', KEY, 'members')
    end
end

if not is_live(record) then
    local status = write({
        state = 'running', ended_at = '-', retention = retention, on_crash = ARGV[4], lease_until = lease_until,
        claim_id = claim_id, fencing_token = next_fencing_token(record), attempt = '1', first_claimed_at = text(NOW),
    }, 'request', CLAIMED_REQUEST, 'owner', ARGV[6])
    set_members()
    if record then
        redis.call('HDEL', KEY, 'outcome', 'began', 'history')
        for _, field in ipairs(step_fields()) do
            redis.call('HDEL', KEY, field)
        end
    end
    return status
end

-- The Redis key determines scope, operation and idempotency key: requests differ only in their fingerprints.
if REQUEST == CLAIMED_REQUEST then
    if record.state == 'running' and record.claim_id == claim_id then
        record.lease_until, record.retention = lease_until, retention
        return write(record)
    end
    local free = record.state == 'released'
    if takes_over then
        free = (record.state == 'interrupted' or is_lapsed(record))
            and record.on_crash ~= 'refuse'
            and is_as_observed(record, ARGV[8], ARGV[9], ARGV[10], ARGV[11])
    end
    if free then
        local history
        if record.state ~= 'released' then
            history = ended_attempt(record, record.state == 'interrupted' and 'interrupted' or 'lapsed')
        end
        record.fencing_token = next_fencing_token(record)
        record.attempt = text(math.min(record.attempt + 1, 4294967295))
        record.state, record.ended_at = 'running', '-'
        record.claim_id, record.lease_until, record.retention = claim_id, lease_until, retention
        if not takes_over then
            set_members()
        end
        if history then
            return write(record, 'owner', ARGV[6], 'began', text(NOW), 'history', history)
        end
        return write(record, 'owner', ARGV[6], 'began', text(NOW))
    end
end
return record_reply()
