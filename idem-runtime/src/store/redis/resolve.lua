-- Resolves a record whose owner is gone, only if it still equals the observation: otherwise it would overwrite a
-- renewal, a takeover or a completion since then.
--
-- KEYS: record, and for a manual change the list of its audit
-- ARGV: transition, then the observation: state, claim id or '-', fencing token, lease end; then actor and reason of a
-- manual change or '' twice
-- complete: state, and the outcome where it has one

local transition = ARGV[1]
local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or not is_as_observed(record, ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then
    return 0
end

-- Adds an entry to the audit, before the change: a full server refuses the first write of a script.
local function write_entry(action)
    if KEYS[2] then
        redis.call('RPUSH', KEYS[2], table.concat({
            text(NOW), ARGV[6], ARGV[7], action, record.state, record.fencing_token, record.attempt,
            redis.call('HGET', KEY, 'request') or '',
        }, '\n'))
    end
end

if transition == 'erase' then
    if record.state == 'running' and not is_lapsed(record) then
        return 0
    end
    -- An erasure makes room, so a full server must not refuse its entry: before the entry comes a write that changes
    -- nothing, and that a full server allows.
    redis.call('HDEL', KEY, '-')
    write_entry('erased')
    erase(record)
    return 1
end
if record.state ~= 'interrupted' and not is_lapsed(record) then
    return 0
end

if transition == 'interrupt' then
    write_entry('interrupted')
    record.state = 'interrupted'
    write(record)
    return 1
end
local state = transition == 'complete' and ARGV[8] or 'released'
write_entry(state)
local history = ended_attempt(record, 'resolved-' .. state)
record.state, record.ended_at, record.claim_id = state, text(NOW), '-'
record.fencing_token = next_fencing_token(record)
if transition == 'complete' and ARGV[9] then
    write(record, 'history', history, 'outcome', ARGV[9])
    return 1
end
write(record, 'history', history)
return 1
