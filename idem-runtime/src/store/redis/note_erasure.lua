-- Adds to the number of an erasure's entry, or writes the entry. Each record is erased in a script of its own, so the entry
-- is written before the first of them.
--
-- KEYS: list of the erasures of this scope
-- ARGV: actor, reason, number of the erasure, number of further records, details

for index, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
    local head, number, erased = string.match(entry, '^(.*\nerased_scope[^\n]*\n)(%d+)\n(%d+)\n\n$')
    if number == ARGV[3] then
        local sum = string.format('%.0f', tonumber(erased) + tonumber(ARGV[4]))
        redis.call('LSET', KEYS[1], index - 1, head .. number .. '\n' .. sum .. '\n\n')
        return 1
    end
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('RPUSH', KEYS[1], table.concat({ now, ARGV[1], ARGV[2], 'erased_scope' .. ARGV[5], ARGV[3], ARGV[4], '', '' }, '\n'))
return 1
