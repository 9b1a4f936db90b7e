-- Resolves a record whose owner is gone, only if it still equals the observation: otherwise it would overwrite a
-- renewal, a takeover or a completion since then.
--
-- ARGV: transition, then the observation: state, claim id or '-', fencing token, lease end
-- complete: state, and the outcome where it has one

local transition = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or not is_as_observed(record, ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then
    return 0
end
if transition == 'erase' then
    if record.state == 'running' and not is_lapsed(record) then
        return 0
    end
    erase(record)
    return 1
end
if record.state ~= 'interrupted' and not is_lapsed(record) then
    return 0
end

if transition == 'interrupt' then
    record.state = 'interrupted'
    write(record)
    return 1
end
record.state, record.ended_at, record.claim_id = 'released', text(NOW), '-'
record.fencing_token = next_fencing_token(record)
if transition == 'complete' then
    record.state = ARGV[6]
    if ARGV[7] then
        write(record, 'outcome', ARGV[7])
        return 1
    end
end
write(record)
return 1
