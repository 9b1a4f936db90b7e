-- Writes the entry of a manual purge: without counts before its first record is deleted, and with them when it has
-- ended. Each record is purged in a script of its own, so an entry that was written only at the end could be lost.
--
-- KEYS: list of its own for this purge
-- ARGV: actor, reason, numbers of records that were removed, abandoned and interrupted; 'begins', or 'ended'; details

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('DEL', KEYS[1])
if ARGV[6] == 'ended' and ARGV[3] == '0' and ARGV[5] == '0' then
    return 0
end
redis.call('RPUSH', KEYS[1], table.concat({ now, ARGV[1], ARGV[2], 'purged' .. ARGV[7], ARGV[3], ARGV[4], ARGV[5], '' }, '\n'))
return 1
