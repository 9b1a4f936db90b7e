-- Removes what cannot be read, only while it is what was read: the mark of an erasure may have taken its place.
--
-- ARGV: value

if redis.pcall('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    return 1
end
return 0
