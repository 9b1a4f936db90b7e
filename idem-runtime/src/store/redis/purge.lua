-- Checks a record again in the script that removes or marks it: its lease may have been renewed since it was found.

local record, problem = load()
if problem then
    return problem
end
if not record or record.state == 'erased' then
    return 'unchanged'
end
if not is_live(record) then
    erase(record)
    return record.state == 'running' and 'abandoned' or 'removed'
end
if record.state == 'running' and record.on_crash ~= 'rerun' and record.lease_until + record.retention <= NOW then
    record.state = 'interrupted'
    write(record)
    return 'interrupted'
end
return 'unchanged'
