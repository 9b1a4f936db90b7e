-- Reads the saved steps of a record for an operator, atomically: after a separate check of the record, the steps could be
-- those of the next generation of the key.

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) then
    return false
end
local reply = {}
for _, field in ipairs(step_fields()) do
    reply[#reply + 1] = field
    reply[#reply + 1] = redis.call('HGET', KEY, field)
end
return reply
