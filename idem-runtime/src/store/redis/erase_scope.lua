-- Erases a record of a scope, expired or not. Its owner may have renewed its lease since the record was listed.
--
-- KEYS: record

local record, problem = load()
if problem then
    return problem
end
if not record or record.state == 'e' then
    return 'absent'
end
if record.state == 'r' and not is_lapsed(record) then
    return 'running'
end
erase(record)
return 'erased'
