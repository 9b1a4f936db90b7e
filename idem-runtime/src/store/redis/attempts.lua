-- Reads a record with its attempts and the digests of the request's members, atomically: after a takeover in between,
-- they would not be those of the record.

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) then
    return false
end
local fields = redis.call('HMGET', KEY, 'owner', 'began', 'history', 'members')
return {
    { TIME[1] .. ' ' .. TIME[2] .. ' ' .. STATUS, redis.call('HGET', KEY, 'request') or '',
        redis.call('HGET', KEY, 'outcome') },
    fields[1], fields[2], fields[3], fields[4],
}
