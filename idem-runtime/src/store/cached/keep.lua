-- Puts a record there, unless it comes late, or what stands there is as new: an erasure that overtook its read is then
-- still remembered, by the grant that it erased. One step, or a record could come in between that is newer.
--
-- ARGV: value, its grant, when it goes in ms, by when it must come in µs

local time = redis.call('TIME')
if time[1] * 1000000 + time[2] > tonumber(ARGV[4]) then
    return 0
end
local head = redis.pcall('GETRANGE', KEYS[1], 0, 63)
if type(head) == 'table' then
    return string.find(head.err, 'WRONGTYPE', 1, true) and 0 or head
end
local grant = string.match(head, '^idem%-%l+/2 (%d+)')
if grant and tonumber(grant) >= tonumber(ARGV[2]) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[3])
return 1
