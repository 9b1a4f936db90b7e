-- Removes the request, which has scope and key, and the hashes of values from the entries of one record's audit. The list may grow meanwhile: entries
-- are only added at its end.
--
-- KEYS: list of the record's audit

local redacted = 0
for index, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
    local head, request = string.match(entry, '^([^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n)(.*)$')
    if head and request ~= '' then
        local before, action, after = string.match(head, '^([^\n]*\n[^\n]*\n[^\n]*\n)([^\n]*)(\n.*)$')
        action = string.gsub(action, ' %l+_value=%x+', '')
        redis.call('LSET', KEYS[1], index - 1, before .. action .. after)
        redacted = redacted + 1
    end
end
return redacted
