-- Reads the saved steps of a record for its owner, atomically: after a separate check of the owner, the steps could be
-- those of the next generation of the key.
--
-- ARGV: claim id, fencing token

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or ENDED[record.state] or record.claim_id ~= ARGV[1] or record.fencing_token ~= ARGV[2] then
    return false
end
local reply = {}
for _, field in ipairs(step_fields()) do
    reply[#reply + 1] = field
    reply[#reply + 1] = redis.call('HGET', KEY, field)
end
return reply
