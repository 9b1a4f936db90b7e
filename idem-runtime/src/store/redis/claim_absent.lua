-- Fast path of a first call: a key that was never used. The next claim reads what this script wrote. HSET comes first:
-- a full server refuses it.

if not STATUS and redis.call('EXISTS', KEY) == 0 then
    local lease_until = NOW + ARGV[2]
    local status = string.format('running - %s %s %.0f %s %.0f 1 %.0f', ARGV[3], ARGV[4], lease_until, ARGV[1], NOW, NOW)
    redis.call('HSET', KEY, 'status', status, 'request', CLAIMED_REQUEST, 'owner', ARGV[6])
    if ARGV[7] ~= '' then
        redis.call('HSET', KEY, 'members', ARGV[7])
    end
    if ARGV[4] == 'rerun' then
        local at = lease_until + ARGV[3] + GRACE
        redis.call('PEXPIREAT', KEY, string.format('%.0f', math.ceil(at / 1000)))
    end
    return status
end
