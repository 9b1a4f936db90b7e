-- Transitions that only the owner may make. The script that writes compares claim id and fencing token. With a separate
-- read, an owner whose record was taken over in between could overwrite its successor.
--
-- ARGV: transition, claim id, fencing token
-- renew: lease
-- save: content of the step's section
-- complete: whether a repetition must be written (1 or 0), state, and the payload where the outcome has one

local transition = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or not is_owned(record, ARGV[2], ARGV[3]) then
    return 0
end
if ENDED[record.state] then
    if transition ~= 'complete' then
        return 0
    end
    -- WAIT waits for the last write of its connection. A new connection needs a write to wait for.
    if ARGV[4] == '1' then
        write_head(record)
    end
    return 1
end

if transition == 'save' then
    -- The first section of a step counts, so a repetition changes nothing.
    write_head(record)
    redis.call('APPEND', KEY, section('s', ARGV[4]))
elseif transition == 'renew' then
    record.state, record.lease_until = 'r', NOW + ARGV[4]
    write_head(record)
elseif transition == 'complete' then
    record.state, record.ended_at = ARGV[5], NOW
    local sections = redis.call('GETRANGE', KEY, HEAD_LENGTH, -1)
    write(record, ARGV[6] and sections .. section('p', ARGV[6]) or sections)
elseif transition == 'release' then
    local sections, unreadable = read_sections()
    if unreadable then
        return unreadable
    end
    end_attempt(record, sections, 'released')
    record.state, record.ended_at, record.claim_id = 'l', NOW, nil
    write(record, join_sections(sections))
elseif transition == 'interrupt' then
    record.state = 'i'
    write_head(record)
end
return 1
