-- Transitions that only the owner may make. The script that writes compares claim id and fencing token. With a separate
-- read, an owner whose record was taken over in between could overwrite its successor.
--
-- ARGV: transition, claim id, fencing token
-- renew: lease
-- save: whether a repetition must be written (1 or 0), name and content of the step
-- complete: whether a repetition must be written (1 or 0), state, and the outcome where it has one

local transition = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or record.claim_id ~= ARGV[2] or record.fencing_token ~= ARGV[3] then
    return 0
end
if ENDED[record.state] then
    if transition ~= 'complete' then
        return 0
    end
    -- WAIT waits for the last write of its connection. A new connection needs a write to wait for.
    if ARGV[4] == '1' then
        write(record)
    end
    return 1
end

if transition == 'save' then
    local field = STEP .. ARGV[5]
    if redis.call('HEXISTS', KEY, field) == 0 then
        write(record, field, ARGV[6])
    elseif ARGV[4] == '1' then
        write(record)
    end
elseif transition == 'renew' then
    record.state, record.lease_until = 'running', text(NOW + ARGV[4])
    write(record)
elseif transition == 'complete' then
    record.state, record.ended_at = ARGV[5], text(NOW)
    if ARGV[6] then
        write(record, 'outcome', ARGV[6])
    else
        write(record)
    end
elseif transition == 'release' then
    local history = ended_attempt(record, 'released')
    record.state, record.ended_at, record.claim_id = 'released', text(NOW), '-'
    write(record, 'history', history)
elseif transition == 'interrupt' then
    record.state = 'interrupted'
    write(record)
end
return 1
