-- Reads a record and the time by which it was read, atomically: read apart, a lease could look over that was renewed.

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) then
    return false
end
return record_reply()
