-- Settles a record that nobody owns any more, only while it is exactly as observed: a heartbeat, a takeover or a
-- completion since then would be overwritten.
--
-- ARGV: step, then the observation: state, token or '', grant, lease end
-- complete: state, and codec and payload where it has them

local step = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or not is_as_observed(record, ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then
    return 0
end
if step == 'erase' then
    if record.state == 'running' and not is_lapsed(record) then
        return 0
    end
    forget(record)
    return 1
end
if record.state ~= 'interrupted' and not is_lapsed(record) then
    return 0
end

if step == 'interrupt' then
    write(record, { 'state', 'interrupted' })
    return 1
end
local fields = { 'state', 'released', 'ended_at', text(NOW), 'grant', next_grant(record) }
if step == 'complete' then
    fields[2] = ARGV[6]
    if #ARGV > 6 then
        fields[7], fields[8], fields[9], fields[10] = 'codec', ARGV[7], 'payload', ARGV[8]
    end
end
write(record, fields)
redis.call('HDEL', KEY, 'token')
return 1
