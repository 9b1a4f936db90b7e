-- A step that only the holder may take. Token and grant are compared in the step that writes: a read before it would
-- let an owner whose record was taken over in between write over its successor.
--
-- ARGV: step, token, grant
-- renew: lease; complete: whether a repetition must be written (1 or 0), state, and codec and payload where it has them

local step = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or record.token ~= ARGV[2] or record.grant ~= ARGV[3] then
    return 0
end
if ENDED[record.state] then
    if step ~= 'complete' then
        return 0
    end
    -- WAIT waits for the last write of its connection; on a fresh one there must be a write to wait for.
    if ARGV[4] == '1' then
        write(record, { 'state', record.state })
    end
    return 1
end

if step == 'renew' then
    write(record, { 'state', 'running', 'lease_until', text(NOW + ARGV[4]) })
elseif step == 'complete' then
    local fields = { 'state', ARGV[5], 'ended_at', text(NOW) }
    if #ARGV > 5 then
        fields[5], fields[6], fields[7], fields[8] = 'codec', ARGV[6], 'payload', ARGV[7]
    end
    write(record, fields)
elseif step == 'release' then
    write(record, { 'state', 'released', 'ended_at', text(NOW) })
    redis.call('HDEL', KEY, 'token')
elseif step == 'interrupt' then
    write(record, { 'state', 'interrupted' })
end
return 1
