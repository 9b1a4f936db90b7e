-- Claims, or takes over if the record equals the observation, atomically: two callers who both saw no record, or both
-- saw the same lapsed lease, are served one after the other, and the second sees the writes of the first. A claim that
-- is not granted writes nothing.
--
-- ARGV: claim id, lease, retention, on_crash, request, label of the owner or '', digests of the members or ''
-- and for a takeover the observation: state, claim id or '', fencing token, lease end
--
-- A granted claim returns fencing token, attempt, time of the first claim and on_crash. Otherwise the record is returned
-- as `read.lua` returns it.

local claim_id, lease, retention = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local takes_over = #ARGV > 7

local record, problem = load()
if problem then
    return problem
end

local function granted()
    return table.concat({
        text(record.fencing_token), text(record.attempt), text(record.first_claimed_at), record.on_crash,
    }, ' ')
end

if not is_live(record) then
    record = {
        state = 'r', on_crash = ARGV[4], claim_id = claim_id, fencing_token = next_fencing_token(record),
        first_claimed_at = NOW, lease_until = NOW + lease, retention = retention, attempt = 1,
    }
    write(record, join_sections({ q = ARGV[5], o = ARGV[6], m = ARGV[7], rest = '' }))
    return granted()
end

-- The Redis key determines scope, operation and idempotency key: requests differ only in their fingerprints.
local request = section('q', ARGV[5])
if redis.call('GETRANGE', KEY, HEAD_LENGTH, HEAD_LENGTH + #request - 1) == request then
    if record.state == 'r' and record.claim_id == claim_id then
        record.lease_until, record.retention = NOW + lease, retention
        write_head(record)
        return granted()
    end
    local free = record.state == 'l'
    if takes_over then
        free = (record.state == 'i' or is_lapsed(record))
            and record.on_crash ~= 'f'
            and is_as_observed(record, ARGV[8], ARGV[9], ARGV[10], ARGV[11])
    end
    if free then
        local sections, unreadable = read_sections()
        if unreadable then
            return unreadable
        end
        if record.state ~= 'l' then
            end_attempt(record, sections, record.state == 'i' and 'interrupted' or 'lapsed')
        end
        if not takes_over then
            sections.m = ARGV[7]
        end
        sections.o, sections.b = ARGV[6], text(NOW)
        record.fencing_token = next_fencing_token(record)
        record.attempt = math.min(record.attempt + 1, 4294967295)
        record.state, record.claim_id = 'r', claim_id
        record.lease_until, record.retention = NOW + lease, retention
        write(record, join_sections(sections))
        return granted()
    end
end
return { TIME, EXPIRES, redis.call('GET', KEY) }
