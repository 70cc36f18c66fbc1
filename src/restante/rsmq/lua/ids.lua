-- Shared by the scripts that send.

-- Returns the id of a message: the microseconds in base 36, then 22 random characters.
local function id_of(micros, tail)
  local DIGITS, id = '0123456789abcdefghijklmnopqrstuvwxyz', tail
  while micros > 0 do
    local digit = micros % 36
    id = string.sub(DIGITS, digit + 1, digit + 1) .. id
    micros = (micros - digit) / 36
  end
  return id
end
