-- Shared by the scripts that send.
local sub, DIGITS = string.sub, '0123456789abcdefghijklmnopqrstuvwxyz'

-- Returns the id of a message: the microseconds in base 36, then 22 random characters.
local function id_of(micros, tail)
  local id = tail
  while micros >= 36 do -- two digits at a time, because every concatenation makes a string
    local low = micros % 36
    micros = (micros - low) / 36
    local high = micros % 36
    micros = (micros - high) / 36
    id = sub(DIGITS, high + 1, high + 1) .. sub(DIGITS, low + 1, low + 1) .. id
  end
  return micros > 0 and sub(DIGITS, micros + 1, micros + 1) .. id or id
end
