-- Replaces an erased record by a tombstone, so that concurrent reads of the store do not put the record back. Atomic,
-- because otherwise the tombstone could replace a later record, or the tombstone of a later erasure.
--
-- ARGV: tombstone, the fencing token that it erases, its time to live in ms

local header = redis.pcall('GETRANGE', KEYS[1], 0, 63)
if type(header) == 'table' then
    return string.find(header.err, 'WRONGTYPE', 1, true) and 0 or header
end
local kind, fencing_token = string.match(header, '^idem%-(%l+)/2 (%d+)')
if fencing_token and tonumber(fencing_token) > tonumber(ARGV[2]) then
    if kind == 'erased' then
        redis.call('PEXPIRE', KEYS[1], ARGV[3])
    end
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
