-- Removes the request, which has scope and key, from the entries of one record's audit. The list may grow meanwhile: entries
-- are only added at its end.
--
-- KEYS: list of the record's audit

local redacted = 0
for index, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
    local head, request = string.match(entry, '^([^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n)(.*)$')
    if head and request ~= '' then
        redis.call('LSET', KEYS[1], index - 1, head)
        redacted = redacted + 1
    end
end
return redacted
