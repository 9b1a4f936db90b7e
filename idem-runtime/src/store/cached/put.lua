-- Puts a record, unless it is late or the stored value is as new. An erasure that overtook the read of the record has
-- then left its tombstone, with the fencing token that it erased. Atomic, because otherwise a newer record could come
-- in between.
--
-- ARGV: value, its fencing token, its expiry in ms, its deadline in µs

local time = redis.call('TIME')
if time[1] * 1000000 + time[2] > tonumber(ARGV[4]) then
    return 0
end
local header = redis.pcall('GETRANGE', KEYS[1], 0, 63)
if type(header) == 'table' then
    return string.find(header.err, 'WRONGTYPE', 1, true) and 0 or header
end
local fencing_token = string.match(header, '^idem%-%l+/2 (%d+)')
if fencing_token and tonumber(fencing_token) >= tonumber(ARGV[2]) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[3])
return 1
