-- Claims, or takes over what was observed, in one step: two callers who both saw nothing, or both saw the same lapsed
-- lease, are served one after the other, and the second sees what the first wrote. A claim that is not granted writes
-- nothing.
--
-- ARGV: token, fingerprint, lease, retention, on_crash, scope, operation, key
-- and for a takeover the observation: state, token or '', grant, lease end

local token, fingerprint, lease, retention = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local takes_over = #ARGV > 8

local record, problem = load()
if problem then
    return problem
end
local lease_until = text(NOW + lease)

local function granted()
    return { 'granted', record.grant, record.attempt, record.first_claimed_at, record.on_crash }
end

if not is_live(record) then
    local grant = next_grant(record)
    local was_there = record
    record = {}
    write(record, {
        'state', 'running', 'token', token, 'grant', grant, 'attempt', '1', 'lease_until', lease_until,
        'retention', retention, 'on_crash', ARGV[5], 'first_claimed_at', text(NOW), 'fingerprint', fingerprint,
        'scope', ARGV[6], 'operation', ARGV[7], 'key', ARGV[8],
    })
    if was_there then
        redis.call('HDEL', KEY, 'ended_at', 'codec', 'payload')
    end
    return granted()
end

if record.fingerprint == fingerprint then
    if record.state == 'running' and record.token == token then
        write(record, { 'lease_until', lease_until })
        return granted()
    end
    local free = record.state == 'released'
    if takes_over then
        free = (record.state == 'interrupted' or is_lapsed(record))
            and record.on_crash ~= 'refuse'
            and is_as_observed(record, ARGV[9], ARGV[10], ARGV[11], ARGV[12])
    end
    if free then
        write(record, {
            'state', 'running', 'token', token, 'grant', next_grant(record),
            'attempt', text(math.min(record.attempt + 1, 4294967295)),
            'lease_until', lease_until, 'retention', retention,
        })
        redis.call('HDEL', KEY, 'ended_at')
        return granted()
    end
end
return whole('existing', record)
