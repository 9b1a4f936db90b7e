-- Completes a record that is exactly as its first claim wrote it (compare-and-swap): after a renewal, a step or a takeover
-- it is not, and `owner_ops.lua` decides.
--
-- ARGV: value of the claim, value with the outcome, time to the expiry in milliseconds

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
