-- Fast path of the completion of a running call. The arguments are those of `owner_ops.lua`. Claim id and fencing token
-- consist of hex digits and digits, so they need no escaping in a pattern.

if STATUS and ARGV[1] == 'complete' then
    local retention, on_crash, lease_until =
        string.match(STATUS, '^running %- (%d+) (%l+) (%d+) ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ')
    if retention and (on_crash ~= 'rerun' or lease_until + retention > NOW) then
        -- All words except the first two stay.
        local status = string.format('%s %.0f%s', ARGV[5], NOW, string.sub(STATUS, #'running -' + 1))
        if ARGV[6] then
            redis.call('HSET', KEY, 'status', status, 'outcome', ARGV[6])
        else
            redis.call('HSET', KEY, 'status', status)
        end
        -- Under rerun the key has an expiry that counts from the end of the lease. If that is soon, the expiry stays:
        -- this saves a write, and a single write needs no transaction in Redis' log.
        local early = lease_until - NOW
        if on_crash ~= 'rerun' or early < 0 or early > GRACE then
            redis.call('PEXPIREAT', KEY, string.format('%.0f', math.ceil((NOW + retention + GRACE) / 1000)))
        end
        return 1
    end
end
