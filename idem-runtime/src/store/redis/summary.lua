-- Reads a record without its result, atomically: with separate reads, the owner could be the one of the next attempt. The
-- result stays on the server, which tells its codec and its size.

local record, problem = load()
if problem then
    return problem
end
if not is_live(record) then
    return false
end
local fields = redis.call('HMGET', KEY, 'request', 'outcome', 'owner')
local outcome = fields[2]
local codec, size = false, 0
if outcome then
    -- The length of the codec, a colon, the codec, and the result.
    local colon = string.find(outcome, ':', 1, true) or 0
    local length = tonumber(string.sub(outcome, 1, colon - 1)) or 0
    codec = string.sub(outcome, 1, colon + length)
    size = #outcome - #codec
end
return { { TIME[1] .. ' ' .. TIME[2] .. ' ' .. STATUS, fields[1] or '', codec }, size, fields[3] }
