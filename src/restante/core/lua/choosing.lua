-- Chooses what a receive takes from a queue with limits for groups, in the order of `ready`: a part of receive.lua.
-- Messages whose group may have no more are moved to `held` on the way.
local call, match, format = redis.call, string.match, string.format
local SIFT = 200 -- messages held back per call, so that no call blocks the server for long

-- Returns up to n ids, their stored forms and deliveries, whether more is ready, how many were held back, and whether
-- index entries without a payload were removed.
local function choose(book, groups, m, n, k, now)
  local ids, bodies, given, back, more, dropped = {}, {}, {}, 0, false, false
  local taken = {}
  repeat
    local first, wanted, blocked = #ids, n - #ids, 0
    local page = call('ZRANGE', k.ready, format('%d', first), format('%d', first + wanted), 'WITHSCORES')
    more = #page > 2 * wanted
    local names, of, known, members, lanes = {}, {}, {}, {}, {}
    for i = 1, math.min(#page, 2 * wanted), 2 do names[#names + 1] = page[i] end
    if #names == 0 then break end
    local stored, before = call('HMGET', k.messages, unpack(names)), call('HMGET', k.deliveries, unpack(names))
    if m.drop_orphans(k.ready, names, stored, now) then
      more, dropped = true, true
      break
    end
    for i = 1, #names do
      local limits = match(stored[i], '^%d+\n[^\n]*\n([^\n]*)\n') or ''
      of[i] = limits ~= '' and m.group_of(limits) or false
      if of[i] then
        known[#known + 1] = of[i]
        lanes[#known] = format('%d', 255 - math.floor(page[2 * i] / SPAN)) .. '\t' .. of[i]
      end
    end
    groups.load_fields(book, known, lanes, {})
    local out = {}
    for i = 1, #names do
      local group, score = of[i], tonumber(page[2 * i])
      local record = group and book.records[group]
      if record and groups.is_blocked(book, group, record, now) then
        blocked = blocked + 1
        members[2 * blocked - 1], members[2 * blocked] = '0', group .. '\t' .. format('%016d', score) .. '\t' .. names[i]
        out[blocked] = names[i]
      else
        local at = #ids + 1
        ids[at], bodies[at], given[at] = names[i], stored[i], before[i]
        local priority = format('%d', 255 - math.floor(score / SPAN))
        groups.served(book, priority, score % SPAN)
        if record then
          local lane = groups.lane_of(book, group, priority)
          lane.count, lane.changed = math.max(0, lane.count - 1), true
          if book.most then record.l, record.changed = record.l + 1, true end
          if book.rate then
            groups.spend(book, group, record, now)
            taken[#taken + 1] = group
          end
        end
      end
    end
    if blocked > 0 then
      call('ZADD', k.held, unpack(members))
      call('ZREM', k.ready, unpack(out))
      back = back + blocked
    end
  until #ids == n or blocked == 0 or back >= SIFT
  groups.expect(book, taken)
  return ids, bodies, given, more, back, dropped
end

return choose
