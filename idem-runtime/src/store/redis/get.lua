-- Reads a record and the time of reading, atomically: with separate reads, a lease that was renewed could look lapsed.

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) then
    return false
end
return record_reply()
