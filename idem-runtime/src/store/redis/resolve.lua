-- Resolves a record whose owner is gone, or corrects one that ended without an owner, only if it still equals the observation: otherwise it would overwrite a
-- renewal, a takeover or a completion since then.
--
-- KEYS: record, and for a manual change the list of its audit
-- ARGV: transition, then the observation: state, claim id or '', fencing token, lease end; then actor, reason and details
-- of a manual change or '' three times
-- complete, correct: state, and the payload where the outcome has one

local transition = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or not is_as_observed(record, ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then
    return 0
end
local sections, unreadable = read_sections()
if unreadable then
    return unreadable
end

local NAMES = {
    r = 'running', i = 'interrupted', l = 'released', c = 'completed', f = 'failed', u = 'unrecorded',
}

-- Adds an entry to the audit, before the change: a full server refuses the first write of a script.
local function write_entry(action)
    if KEYS[2] then
        redis.call('RPUSH', KEYS[2], table.concat({
            text(NOW), ARGV[6], ARGV[7], action .. ARGV[8], NAMES[record.state], text(record.fencing_token), text(record.attempt),
            sections.q or '',
        }, '\n'))
    end
end

-- Steps without the payload.
local function without_payload(rest)
    local steps, at = {}, 1
    while at <= #rest do
        local tag, length = struct.unpack('>c1I4', rest, at)
        if tag ~= 'p' then
            steps[#steps + 1] = string.sub(rest, at, at + 4 + length)
        end
        at = at + 5 + length
    end
    return table.concat(steps)
end

if transition == 'erase' then
    if record.state == 'r' and not is_lapsed(record) then
        return 0
    end
    if KEYS[2] then
        -- An erasure makes room, so a full server must not refuse its entry: before the entry comes a write that changes
        -- nothing, and that a full server allows.
        redis.call('LTRIM', KEYS[2], 0, -1)
    end
    write_entry('erased')
    erase(record)
    return 1
end
if transition == 'correct' then
    if not ENDED[record.state] or record.claim_id then
        return 0
    end
elseif record.state ~= 'i' and not is_lapsed(record) then
    return 0
end

if transition == 'interrupt' then
    write_entry('interrupted')
    record.state = 'i'
    write_head(record)
    return 1
end
if transition == 'correct' then
    write_entry('corrected')
    record.state, record.fencing_token = ARGV[9], next_fencing_token(record)
    sections.rest = without_payload(sections.rest)
    if ARGV[10] then
        sections.rest = sections.rest .. section('p', ARGV[10])
    end
    write(record, join_sections(sections))
    return 1
end
local state = transition == 'complete' and ARGV[9] or 'l'
write_entry(NAMES[state])
end_attempt(record, sections, 'resolved-' .. NAMES[state])
record.state, record.ended_at, record.claim_id = state, NOW, nil
record.fencing_token = next_fencing_token(record)
if transition == 'complete' and ARGV[10] then
    sections.rest = sections.rest .. section('p', ARGV[10])
end
write(record, join_sections(sections))
return 1
