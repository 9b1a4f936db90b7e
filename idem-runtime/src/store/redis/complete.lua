-- The completion of a call that runs, on a fast path. The arguments are those of `owner_ops.lua`; claim id and fencing
-- token are hex digits and digits, so they stand for themselves in a pattern.

if STATUS and ARGV[1] == 'complete' then
    local retention, on_crash, lease_until =
        string.match(STATUS, '^running %- (%d+) (%l+) (%d+) ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ')
    if retention and (on_crash ~= 'rerun' or lease_until + retention > NOW) then
        -- All but the first two words stays.
        local status = string.format('%s %.0f%s', ARGV[5], NOW, string.sub(STATUS, #'running -' + 1))
        if ARGV[6] then
            redis.call('HSET', KEY, 'status', status, 'outcome', ARGV[6])
        else
            redis.call('HSET', KEY, 'status', status)
        end
        -- Under rerun the key has an expiry that counts from the end of the lease. Where that is soon, it stays: one write
        -- less, and a single one needs no transaction in Redis' log.
        local early = lease_until - NOW
        if on_crash ~= 'rerun' or early < 0 or early > GRACE then
            redis.call('PEXPIREAT', KEY, string.format('%.0f', math.ceil((NOW + retention + GRACE) / 1000)))
        end
        return 1
    end
end
