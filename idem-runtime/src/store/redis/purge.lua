-- Checks a record again in the script that removes or marks it: its lease may have been renewed since it was found.
--
-- ARGV: latest time as of which to check it: the server's clock may have jumped forward

local AS_OF = math.min(NOW, tonumber(ARGV[1]))

local record, problem = load()
if problem then
    return problem
end
if not record or record.state == 'e' then
    return 'unchanged'
end
local at = expires_at(record)
if at and at <= AS_OF then
    local was_running = record.state == 'r'
    erase(record)
    return was_running and 'abandoned' or 'removed'
end
if record.state == 'r' and record.on_crash ~= 'r' and record.lease_until + record.retention <= AS_OF then
    record.state = 'i'
    write_head(record)
    return 'interrupted'
end
return 'unchanged'
