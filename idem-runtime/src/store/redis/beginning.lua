-- Reads the beginning of a record, which has everything except a long result and its steps.

local beginning = redis.call('GETRANGE', KEYS[1], 0, 4095)
return {
    redis.call('TIME'), redis.call('PEXPIRETIME', KEYS[1]), beginning ~= '' and beginning,
    redis.call('STRLEN', KEYS[1]),
}
