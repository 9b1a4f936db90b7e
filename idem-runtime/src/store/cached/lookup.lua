-- Reads the value and the time, atomically. The time determines how old a record is. It also begins the time limit for
-- putting the record that is then read from the store.

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
    if string.find(value.err, 'WRONGTYPE', 1, true) then
        return { now, false }
    end
    return value
end
return { now, value }
