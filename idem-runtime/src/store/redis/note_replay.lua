-- Adds a replay to the history of a record. The record may have been replaced since its outcome was replayed: that of
-- another generation has another fencing token. A history that is half full keeps its room for attempts.
--
-- ARGV: fencing token, label of the process that replayed, or ''

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) or not ENDED[record.state] or record.fencing_token ~= tonumber(ARGV[1]) then
    return 0
end
local sections, unreadable = read_sections()
if unreadable then
    return unreadable
end
local history = sections.h or ''
if #history >= 4096 then
    return 0
end
local line = table.concat({ text(record.attempt), text(NOW), text(NOW), 'replayed', ARGV[2] }, ' ')
sections.h = history .. line .. '\n'
write(record, join_sections(sections))
return 1
