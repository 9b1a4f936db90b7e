-- Leaves a mark in the place of an erased record, so that reads of it that are under way do not bring it back. One step,
-- or it could take the place of a later record, or of the mark of a later erasure.
--
-- ARGV: mark, the grant that it erases, its life in ms

local head = redis.pcall('GETRANGE', KEYS[1], 0, 63)
if type(head) == 'table' then
    return string.find(head.err, 'WRONGTYPE', 1, true) and 0 or head
end
local kind, grant = string.match(head, '^idem%-(%l+)/2 (%d+)')
if grant and tonumber(grant) > tonumber(ARGV[2]) then
    if kind == 'erased' then
        redis.call('PEXPIRE', KEYS[1], ARGV[3])
    end
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
