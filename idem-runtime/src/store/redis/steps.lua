-- Reads the saved steps of a record for its holder, in one step: read after a look at the holder, they could be those of
-- the next life of the key.
--
-- ARGV: token, grant

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or ENDED[record.state] or record.token ~= ARGV[1] or record.grant ~= ARGV[2] then
    return false
end
local reply = {}
for _, field in ipairs(step_fields()) do
    reply[#reply + 1] = field
    reply[#reply + 1] = redis.call('HGET', KEY, field)
end
return reply
