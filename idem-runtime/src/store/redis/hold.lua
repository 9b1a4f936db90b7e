-- A step that only the holder may take. Token and grant are compared in the step that writes: a read before it would
-- let an owner whose record was taken over in between write over its successor.
--
-- ARGV: step, token, grant
-- renew: lease
-- save: whether a repetition must be written (1 or 0), name and content of the step
-- complete: whether a repetition must be written (1 or 0), state, and the outcome where it has one

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
        write(record)
    end
    return 1
end

if step == 'save' then
    local field = STEP .. ARGV[5]
    if redis.call('HEXISTS', KEY, field) == 0 then
        write(record, field, ARGV[6])
    elseif ARGV[4] == '1' then
        write(record)
    end
elseif step == 'renew' then
    record.state, record.lease_until = 'running', text(NOW + ARGV[4])
    write(record)
elseif step == 'complete' then
    record.state, record.ended_at = ARGV[5], text(NOW)
    if ARGV[6] then
        write(record, 'outcome', ARGV[6])
    else
        write(record)
    end
elseif step == 'release' then
    record.state, record.ended_at, record.token = 'released', text(NOW), '-'
    write(record)
elseif step == 'interrupt' then
    record.state = 'interrupted'
    write(record)
end
return 1
