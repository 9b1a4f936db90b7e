-- Claims, or takes over what was observed, in one step: two callers who both saw nothing, or both saw the same lapsed
-- lease, are served one after the other, and the second sees what the first wrote. A claim that is not granted writes
-- nothing. One that is granted answers with the head.
--
-- ARGV: token, lease, retention, on_crash, about
-- and for a takeover the observation: state, token or '-', grant, lease end

local token, lease, retention = ARGV[1], ARGV[2], ARGV[3]
local takes_over = #ARGV > 5

local record, problem = load()
if problem then
    return problem
end
local lease_until = text(NOW + lease)

if not is_live(record) then
    local head = write({
        state = 'running', ended_at = '-', retention = retention, on_crash = ARGV[4], lease_until = lease_until,
        token = token, grant = next_grant(record), attempt = '1', first_claimed_at = text(NOW),
    }, 'about', ASKED)
    if record then
        redis.call('HDEL', KEY, 'outcome')
        for _, field in ipairs(step_fields()) do
            redis.call('HDEL', KEY, field)
        end
    end
    return head
end

-- The key says whose record it is, so this differs where the request does.
if ABOUT == ASKED then
    if record.state == 'running' and record.token == token then
        record.lease_until = lease_until
        return write(record)
    end
    local free = record.state == 'released'
    if takes_over then
        free = (record.state == 'interrupted' or is_lapsed(record))
            and record.on_crash ~= 'refuse'
            and is_as_observed(record, ARGV[6], ARGV[7], ARGV[8], ARGV[9])
    end
    if free then
        record.grant = next_grant(record)
        record.attempt = text(math.min(record.attempt + 1, 4294967295))
        record.state, record.ended_at = 'running', '-'
        record.token, record.lease_until, record.retention = token, lease_until, retention
        return write(record)
    end
end
return found()
