-- Removes an unreadable value, only if it is still the value that was read: a tombstone may have replaced it.
--
-- ARGV: value

if redis.pcall('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    return 1
end
return 0
