-- Replace the account's state if it is still the one the caller has seen, else hand out the present one.
-- KEYS: state. ARGV: state as seen ('' for none), state to write, seconds it is kept.
-- Returns: 1 or 0, the present state, Redis' clock in seconds.
local present = redis.call('GET', KEYS[1]) or ''
local clock = redis.call('TIME')
local now = tostring(clock[1]) .. '.' .. string.format('%06d', clock[2])
if present ~= ARGV[1] then
  return {0, present, now}
end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return {1, ARGV[2], now}
