-- Shared by the scripts (included, after lib/thread, lib/framing, lib/chunks and lib/checkpoint): a history that bounds itself.

-- Removes old checkpoints of the namespace that was just put to, where it has many more than are to be kept.
-- checkpoint, header: what was put. asked: what put.lua takes; stored: @history. dirty: that key where there are tiers, else nil.
-- All else is a part of this function: a script makes its functions anew at each call, and where no limit is asked for there is this one alone.
local function trim(index, data, meta, checkpoint, header, asked, stored, dirty)
  local MIN_SLACK, MIN_BATCH, MAX_BATCH = 16, 64, 500 -- checkpoints
  local MAX_WRITES, MAX_CALLS, MAX_SWEPT, MAX_LISTS = 2000, 2000, 3000, 4000 -- records, calls, checkpoints, lists of chunks

  local default, own, root = string.match(asked, '^(%d*)/(%w*)/(.*)$')
  if own and own ~= '' and own ~= stored then redis.call('HSET', data, '@history', own) end
  if not own or own == '' then own = stored or default end
  local keep = own and string.find(own, '^%d%d?%d?%d?$') and tonumber(own) or 0
  if keep == 0 then return end

  local first = string.find(checkpoint, '%z')
  local ns = string.sub(checkpoint, 2, first)
  local upper, at_next = '(c' .. string.sub(ns, 1, -2) .. '\1', '@trim_at' .. ns
  if root and root ~= '' then redis.call('ZADD', index, 0, 's' .. root .. ns) end
  -- What comes late might make up for what was removed, in the counts that remembered histories depend on.
  if redis.call('ZLEXCOUNT', index, '(' .. checkpoint, upper) > 0 then redis.call('HSET', data, '@rewritten', next_rewrite(data)) end
  local count = redis.call('ZLEXCOUNT', index, '[c' .. ns, upper)
  local slack = math.max(MIN_SLACK, math.floor(keep / 2))
  if count <= keep + slack then return end
  local marks = redis.call('HMGET', data, at_next, '@cold_backed', '@complete', '@no_task_path', '@sweep_at')
  if count < (tonumber(marks[1] or '') or 0) then return end
  -- Who writes past the tiers does not see what cold lacks; and what only hot has is brought to cold first.
  if (dirty ~= nil) ~= (marks[2] and true or false) then return end
  local has_dirty = dirty and redis.call('EXISTS', dirty) == 1

  local members = redis.call('ZREVRANGEBYLEX', index, upper, '[c' .. ns) -- newest first, as all that follows
  local headers, ids, parents, place, linked = fetch(data, members), {}, {}, {}, {}

  -- The links of a checkpoint, by its position.
  local function links_at(i)
    if not linked[i] then
      reading = 'a header'
      if not headers[i] then damaged() end
      linked[i] = links(headers[i])
    end
    return linked[i]
  end

  -- The names of channels that a header has, and its tokens.
  local function named_in(of)
    local names, problem = names_in(data, of.names)
    if problem then damaged() end
    local tokens, n = {}, 0
    for token in string.gmatch(of.tokens, '13:(v............)') do
      n = n + 1
      tokens[n] = token
    end
    if 16 * n ~= #of.tokens then tokens = unpack_frames(of.tokens) end
    return names, tokens
  end

  -- Values are told apart by token and the number of a channel, as to make the names of their fields takes longer than all else.
  local numbers, channels, numbers_in = {}, {}, {}
  local function number_of(channel)
    if not numbers[channel] then
      channels[#channels + 1] = channel
      numbers[channel] = #channels
    end
    return numbers[channel]
  end

  -- Values that are held in a namespace, by token and number. names, tokens: of the last header; the next one has most of its versions, too.
  local function nothing_held()
    return { names = '', tokens = {}, by_token = {} }
  end

  local function hold_one(held, number, token)
    local some = held.by_token[token]
    if not some then
      some = {}
      held.by_token[token] = some
    end
    some[number] = true
  end

  -- Notes all values that a header holds, also those it only retains.
  local function hold(of, held)
    local names, tokens = named_in(of)
    local slots, numbered, last = of.slots, numbers_in[of.names], held.names == of.names and held.tokens or {}
    if not numbered then
      numbered = {}
      for i = 1, #names do numbered[i] = number_of(names[i]) end
      numbers_in[of.names] = numbered
    end
    for i = 1, #of.flags do
      local high, low = string.byte(slots, 2 * i - 1, 2 * i)
      local token = low and tokens[high * 256 + low + 1]
      if not token or not numbered[i] then damaged() end
      if last[i] ~= token then
        last[i] = token
        hold_one(held, numbered[i], token)
      end
    end
    held.names, held.tokens = of.names, last
    for _, entry in ipairs(of.retained == '' and {} or unpack_frames(of.retained)) do
      local cut = string.find(entry, '%z')
      if not cut then damaged() end
      hold_one(held, number_of(string.sub(entry, 1, cut)), string.sub(entry, cut + 1))
    end
  end

  -- The fields of the values that are held in a namespace; without those that live has, too, if that is given.
  local function fields_of(space, held, live)
    local fields, size = {}, 0
    for token, some in pairs(held.by_token) do
      local of_live = live and live.by_token[token]
      for number in pairs(some) do
        if not (of_live and of_live[number]) then
          fields[#fields + 1] = 'b' .. space .. channels[number] .. token
          size = size + #fields[#fields]
          if size > MAX_NAMED then damaged() end
        end
      end
    end
    return fields
  end

  -- The members of the writes to a checkpoint of the namespace.
  local function writes_of(id)
    local from = 'w' .. ns .. id
    return redis.call('ZRANGEBYLEX', index, '[' .. from, '(' .. string.sub(from, 1, -2) .. '\1')
  end

  -- Whether cold lacks any of these members.
  local function lacks(some)
    for i = 1, has_dirty and #some or 0 do
      if redis.call('ZSCORE', dirty, some[i]) then return true end
    end
    return false
  end

  -- What is to go.
  local gone, doomed, chunks, bytes, blobs, writes = {}, {}, {}, 0, 0, 0
  local function doom(member)
    gone[#gone + 1] = member
    doomed[#doomed + 1] = member
  end

  -- Dooms records of pending writes.
  local function doom_writes(some)
    reading = 'a record of pending writes'
    local records = fetch(data, some)
    for i = 1, #some do
      local record, pos = records[i] or '', 1
      while pos <= #record do
        pos = skip(record, pos, 5)
        writes = writes + 1
      end
      for _, root in ipairs(roots_in(record)) do chunks[#chunks + 1] = pack(root) end
      bytes = bytes + #record
      doom(some[i])
    end
  end

  -- Dooms a checkpoint; notes which values it holds, and its names chunk, unless others of the namespace have that.
  local function doom_checkpoint(member, space, packed, of, held, others)
    doom(member)
    if space ~= '\0' then gone[#gone + 1] = 'i' .. string.sub(member, #space + 2) .. space end
    bytes = bytes + #packed
    hold(of, held)
    if not others[of.names] then
      others[of.names] = true
      chunks[#chunks + 1] = as_stray(string.sub(of.names, 1, 1), string.sub(of.names, 2))
    end
  end

  -- The roots among some values, and of all of them the sizes: none where there is no such value. A long value that is no root is not read.
  local function roots_of(fields)
    local sizes, short = {}, {}
    for j, field in ipairs(fields) do
      local size = redis.call('HSTRLEN', data, field)
      if size > 0 or redis.call('HEXISTS', data, field) == 1 then sizes[j] = size end
      if size > 0 and size <= MAX_ROOT then short[#short + 1] = field end
    end
    local roots = {}
    for _, value in ipairs(fetch(data, short)) do
      if in_chunks(value) then roots[#roots + 1] = value end
    end
    return roots, sizes
  end

  -- Dooms values; notes what they have of chunks.
  local function doom_values(fields)
    local roots, sizes = roots_of(fields)
    for j, size in pairs(sizes) do
      doomed[#doomed + 1] = fields[j]
      bytes, blobs = bytes + size, blobs + 1
    end
    for j = 1, #roots do chunks[#chunks + 1] = pack(roots[j]) end
  end

  -- Dooms the namespace of a subgraph's call, all of it; answers how many checkpoints it has, nil where cold lacks any of it.
  local function doom_call(space)
    local behind = string.sub(space, 1, -2) .. '\1'
    local some = redis.call('ZRANGEBYLEX', index, '[c' .. space, '(c' .. behind)
    local of_tasks = redis.call('ZRANGEBYLEX', index, '[w' .. space, '(w' .. behind)
    if lacks(some) or lacks(of_tasks) then return nil end
    local packed, held, others = fetch(data, some), nothing_held(), {}
    for i = 1, #some do
      reading = 'a header'
      if not packed[i] then damaged() end
      doom_checkpoint(some[i], space, packed[i], links(packed[i]), held, others)
    end
    doom_values(fields_of(space, held))
    doom_writes(of_tasks)
    for _, mark in ipairs({ '@trim_at', '@has_latest', '@flushed_head' }) do doomed[#doomed + 1] = mark .. space end
    return #some
  end

  -- What stays of the namespace, by position: the newest; what was just put, and its parent, to which writes may still come; and the
  -- ancestors without which a channel of those could not be rebuilt. That is what prune keeps (`_needed_by_delta_channels`).
  local kept, waiting = {}, {}
  local function stay(i)
    if i and not kept[i] then
      kept[i] = true
      waiting[#waiting + 1] = i
    end
  end

  -- Of a checkpoint whose parent would go: the empty channels to which there are writes since their nearest value need the ancestors up to that.
  local function stay_ancestors(from)
    local of, needles, open = links_at(from), {}, 0
    if not string.find(of.flags, '0', 1, true) then return end
    local names = named_in(of)
    for i = 1, #of.flags do
      if string.byte(of.flags, i) == 48 then -- '0'
        local name = string.gsub(string.sub(names[i], 1, -2), '\1(.)', { ['\1'] = '\0', ['\2'] = '\1' })
        needles[names[i]], open = pack(name), open + 1
      end
    end
    local path, written, upto, visited, i = {}, {}, 0, {}, place[parents[from]]
    while i and open > 0 and not visited[i] do
      visited[i], path[#path + 1] = true, i
      local records = fetch(data, writes_of(ids[i]))
      for channel, needle in pairs(needles) do
        for j = 1, #records do
          if not records[j] or string.find(records[j], needle, 1, true) then
            written[channel], upto = true, #path
            break
          end
        end
      end
      local ancestor = links_at(i)
      local its_names, tokens = named_in(ancestor)
      for j = 1, #ancestor.flags do
        local channel = its_names[j]
        if needles[channel] and redis.call('HSTRLEN', data, (value_field(ns, its_names, tokens, ancestor.slots, j))) > 0 then
          if written[channel] then upto = #path end
          needles[channel], open = nil, open - 1
        end
      end
      i = place[parents[i]]
    end
    for j = 1, upto do stay(path[j]) end
  end

  -- Chooses what stays; answers the positions of what goes, newest first, so that what is left for later is whole.
  local function choose()
    for i = 1, #members do
      ids[i] = string.sub(members[i], #ns + 2)
      place[ids[i]] = i
      parents[i] = links_at(i).parent
    end
    for i = 1, math.min(keep, #members) do stay(i) end
    local from, to = frame(header, 1)
    stay(place[string.sub(checkpoint, first + 1)])
    stay(place[string.sub(header, from, to)])
    for i = keep + 1, has_dirty and #members or 0 do
      if lacks({ members[i] }) or lacks(writes_of(ids[i])) then stay(i) end
    end
    local next_one = 1
    while waiting[next_one] do
      local i = waiting[next_one]
      local parent = place[parents[i]]
      if parent and not kept[parent] then stay_ancestors(i) end
      next_one = next_one + 1
    end
    local going = {}
    for i = keep + 1, #members do
      if not kept[i] then going[#going + 1] = i end
    end
    return going
  end

  -- The calls of subgraphs that started from root checkpoints that go, by the positions of those: lists of {member, namespace}, false where that is
  -- also a call of one that stays. Those of a root checkpoint that had gone before they came are among those of the oldest.
  local function calls_to_go(going)
    local by_root, of_kept = {}, {}
    if ns ~= '\0' then return by_root end
    local started = redis.call('ZRANGEBYLEX', index, '[s', '(t', 'LIMIT', 0, MAX_CALLS)
    for pass = 1, 2 do
      for j = 1, #started do
        local cut = string.find(started[j], '%z')
        local from, space = string.sub(started[j], 2, cut), string.sub(started[j], cut + 1)
        local i = place[from] or above(ids[math.min(keep, #ids)], from) and going[#going]
        if pass == 1 and (not i or kept[i]) then
          of_kept[space] = true
        elseif pass == 2 and i and not kept[i] then
          by_root[i] = by_root[i] or {}
          table.insert(by_root[i], { started[j], not of_kept[space] and space })
        end
      end
    end
    return by_root
  end

  -- Takes as many as one put may; answers the members of their writes by their positions, how many checkpoints these are, and whether those are all
  -- that go. Their calls are doomed here: they go before the root checkpoint that says they are over.
  local function doom_some(going)
    local calls, batch = calls_to_go(going), math.max(MIN_BATCH, math.min(MAX_BATCH, math.floor(#members / 8)))
    local victims, n, size, seen = {}, 0, 0, {}
    for k = 1, #going do
      local i, is_over = going[k], true
      for _, call in ipairs(calls[i] or {}) do
        local member, space = call[1], call[2]
        if space and seen[space] == nil then
          local took = doom_call(space)
          seen[space], size = took ~= nil, size + (took or 0)
        end
        if space and not seen[space] then
          is_over = false
        else
          gone[#gone + 1] = member
        end
      end
      if is_over then
        victims[i], n = writes_of(ids[i]), n + 1
        size = size + 1 + math.floor(#victims[i] / 10)
      end
      if size >= batch then return victims, n, k == #going end
    end
    return victims, n, true
  end

  -- Dooms the victims, with what nobody else in the namespace holds. What they hold of chunks is noted, for `sweep`.
  local function doom_victims(victims)
    local live, held, others, orphans = nothing_held(), nothing_held(), {}, {}
    for i = 1, #members do
      if not victims[i] then
        local of = links_at(i)
        hold(of, live)
        others[of.names] = true
        if victims[place[parents[i]]] and not dirty then -- cold has the parent
          local rest = string.sub(headers[i], skip(headers[i], 1, 1))
          orphans[#orphans + 1], orphans[#orphans + 2] = members[i], pack('') .. rest
          bytes = bytes + #headers[i] - #rest - 2
        end
      end
    end
    local oldest, of_tasks = nil, {}
    for i = 1, #members do
      if victims[i] then
        doom_checkpoint(members[i], ns, headers[i], links_at(i), held, others)
        for _, member in ipairs(victims[i]) do of_tasks[#of_tasks + 1] = member end
      else
        oldest = ids[i]
      end
    end
    -- Writes that came when their checkpoint had gone.
    local strays = redis.call('ZRANGEBYLEX', index, '[w' .. ns, '(w' .. ns .. oldest, 'LIMIT', 0, MAX_WRITES)
    for j = 1, #strays do
      local id = string.sub(strays[j], #ns + 2, (string.find(strays[j], '%z', #ns + 2)))
      if not place[id] and not lacks({ strays[j] }) then of_tasks[#of_tasks + 1] = strays[j] end
    end
    doom_writes(of_tasks)
    doom_values(fields_of(ns, held, live))
    return orphans
  end

  -- Whether what processes remember of histories could be believed wrongly from now on, as its counts come right again (ARCHITECTURE.md): where
  -- something went from between two that stay; or where a parent may still come (of a thread in front of cold: where all was here until now).
  local function is_doubtful(victims)
    local seen_victim = false
    for i = 1, #members do
      if victims[i] then seen_victim = true
      elseif seen_victim or not dirty and parents[i] ~= '' and not place[parents[i]] then return true end
    end
    return marks[3]
  end

  -- Removes what is doomed, in the order of remove.lua.
  local function commit_removal(orphans, is_rewritten)
    if is_rewritten then redis.call('HSET', data, '@rewritten', next_rewrite(data)) end
    for j = 1, #orphans, 2 do redis.call('HSET', data, orphans[j], orphans[j + 1]) end
    if marks[3] then -- hot does not have all any more; what is newest it has
      local lower, n = '[c', 0
      repeat
        local found = redis.call('ZRANGEBYLEX', index, lower, '(d', 'LIMIT', 0, 1)[1]
        local space = found and string.sub(found, 2, (string.find(found, '%z')))
        if space then redis.call('HSET', data, '@has_latest' .. space, marks[3]) end
        lower, n = space and '(c' .. string.sub(space, 1, -2) .. '\1', n + 1
      until not space or n == MAX_CALLS
      redis.call('HDEL', data, '@complete')
    end
    for from = 1, #gone, BATCH do redis.call('ZREM', index, unpack(gone, from, math.min(from + BATCH - 1, #gone))) end
    if #chunks > 0 then
      redis.call('HSET', data, '@gc_roots', (redis.call('HGET', data, '@gc_roots') or '') .. table.concat(chunks))
    end
    for from = 1, #doomed, BATCH do redis.call('HDEL', data, unpack(doomed, from, math.min(from + BATCH - 1, #doomed))) end
    meta.bytes, meta.blobs, meta.writes = meta.bytes - bytes, meta.blobs - blobs, meta.writes - writes
    redis.call('HSET', data, '@state', state_of(meta))
    if marks[4] then
      local pathless = {}
      for _, from in ipairs(unpack_frames(marks[4])) do
        if redis.call('ZSCORE', index, 'c' .. string.sub(from, 2)) then pathless[#pathless + 1] = pack(from) end
      end
      redis.call('HSET', data, '@no_task_path', table.concat(pathless))
    end
  end

  -- The lists of chunks below all values that stay and all pending writes, and the digests of what is below those; and how many fields were read for it.
  local function live_chunks(by_namespace)
    local lists, leaves, wanted, cost = {}, {}, {}, 0
    local function add(list, pos)
      if string.byte(list, 1) ~= 110 then -- 'n'
        leaves[#leaves + 1] = string.sub(list, pos)
        return
      end
      for _, field in ipairs(children(list, pos)) do
        if not lists[field] then
          lists[field], wanted[#wanted + 1] = true, field
        end
      end
    end
    for space, held in pairs(by_namespace) do
      local fields = fields_of(space, held)
      for _, root in ipairs((roots_of(fields))) do add(root, skip(root, 18, 2)) end
      cost = cost + 2 * #fields
    end
    local records = meta.format < HAS_CHUNKED_WRITES and {} or redis.call('ZRANGEBYLEX', index, '[w', '(x')
    for _, record in ipairs(fetch(data, records)) do
      for _, root in ipairs(roots_in(record or '')) do add(root, skip(root, 18, 2)) end
    end
    cost = cost + #records
    while #wanted > 0 do
      local some = fetch(data, wanted)
      cost, wanted = cost + #wanted, {}
      for j = 1, #some do
        if not some[j] then damaged() end
        add(some[j], 2)
      end
    end
    return lists, table.concat(leaves), cost
  end

  -- Some fields of chunks without those that are among the leaves: in one pass over these, as there may be many thousands of both.
  local function without_live(fields, leaves)
    local is_dead, dead = {}, {}
    for j = 1, #fields do is_dead[string.sub(fields[j], 2)] = true end
    for at = 1, #leaves, 16 do
      local digest = string.sub(leaves, at, at + 15)
      if is_dead[digest] then is_dead[digest] = false end
    end
    for j = 1, #fields do
      if is_dead[string.sub(fields[j], 2)] then dead[#dead + 1] = fields[j] end
    end
    return dead
  end

  -- Removes the chunks and runs that nobody holds any more, as prune does. It reads the links of the whole thread, so it waits until there is
  -- so much to sweep that this costs little for each.
  local function sweep()
    local size, runs = redis.call('HSTRLEN', data, '@gc_roots'), redis.call('ZLEXCOUNT', index, '[r', '(s')
    local left = redis.call('ZLEXCOUNT', index, '[c', '(d')
    local is_due = size > math.max(4096, tonumber(marks[5] or '') or 0) or runs > left + math.max(32, left / 2)
    if not is_due or left > MAX_SWEPT then return end
    local all = redis.call('ZRANGEBYLEX', index, '[c', '(d')
    local some, by_namespace, names, of_runs = fetch(data, all), {}, {}, {}
    for i = 1, #all do
      reading = 'a header'
      if not some[i] then damaged() end
      local of, space = links(some[i]), string.sub(all[i], 2, (string.find(all[i], '%z')))
      names[of.names], of_runs[of.run] = true, true
      by_namespace[space] = by_namespace[space] or nothing_held()
      hold(of, by_namespace[space])
    end
    reading = 'a value'
    local lists, leaves, cost = live_chunks(by_namespace)

    -- Lists go in one command, as one that is there has all that is below it, and each may be below another. A value that has too many goes alone.
    reading = '@gc_roots'
    local roots, seen, dead_lists, dead, rest = unpack_frames(redis.call('HGET', data, '@gc_roots') or ''), {}, {}, {}, 1
    while roots[rest] and #dead_lists < MAX_LISTS / 4 do
      local level, of_lists, of_leaves = { { roots[rest], skip(roots[rest], 18, 2) } }, {}, {}
      while #level > 0 do
        local below = {}
        for j = 1, #level do
          for _, field in ipairs(children(level[j][1], level[j][2])) do
            local is_list = string.byte(field, 1) == 110
            if not (seen[field] or lists[field] or names[field]) then
              local into = is_list and of_lists or of_leaves
              into[#into + 1] = field
              if is_list then below[#below + 1] = field end
            end
            seen[field] = true
          end
        end
        local found = fetch(data, below)
        level = {}
        for j = 1, #below do
          if found[j] then level[#level + 1] = { found[j], 2 } end
        end
      end
      if #dead_lists > 0 and #dead_lists + #of_lists > MAX_LISTS then break end
      for j = 1, #of_lists do dead_lists[#dead_lists + 1] = of_lists[j] end
      for j = 1, #of_leaves do dead[#dead + 1] = of_leaves[j] end
      rest = rest + 1
    end
    dead = without_live(dead, leaves)
    local function drop(fields_to_go, page)
      for from = 1, #fields_to_go, page do
        local to = math.min(from + page - 1, #fields_to_go)
        for j = from, to do meta.bytes = meta.bytes - redis.call('HSTRLEN', data, fields_to_go[j]) end
        redis.call('HDEL', data, unpack(fields_to_go, from, to))
      end
    end
    if #dead_lists > 0 then -- so that what was below them is found where this ends here (docs/storage-format.md, Crashes)
      local below, noted = { p = {}, z = {} }, redis.call('HGET', data, '@gc_roots')
      for j = 1, #dead do table.insert(below[string.sub(dead[j], 1, 1)], string.sub(dead[j], 2)) end
      for kind, digests in pairs(below) do
        if #digests > 0 then noted = noted .. as_stray(kind, table.concat(digests)) end
      end
      redis.call('HSET', data, '@gc_roots', noted)
    end
    drop(dead_lists, MAX_LISTS)
    drop(dead, BATCH)
    local still = {}
    for j = rest, #roots do still[#still + 1] = pack(roots[j]) end
    if #still > 0 then
      redis.call('HSET', data, '@gc_roots', table.concat(still))
    else
      redis.call('HDEL', data, '@gc_roots')
    end
    for _, run in ipairs(redis.call('ZRANGEBYLEX', index, '[r', '(s')) do
      if not of_runs[run] then redis.call('ZREM', index, run) end
    end
    redis.call('HSET', data, '@state', state_of(meta), '@sweep_at', string.format('%.0f', 4096 + 8 * (10 * #all + cost)))
  end

  -- Where something cannot be read, what was put stays put, and this leaves the thread alone for a while: who reads that, or checks it, is told.
  local was_done, more = pcall(function()
    local victims, n, has_all = doom_some(choose())
    if n + #doomed > 0 then
      local orphans = doom_victims(victims)
      commit_removal(orphans, is_doubtful(victims))
    end
    sweep()
    return { left = count - n, has_all = has_all }
  end)
  if was_done and more.has_all and more.left <= keep + slack then
    if marks[1] then redis.call('HDEL', data, at_next) end
  elseif not was_done or more.has_all then -- the rest is needed: what comes on top is looked at together
    local left = was_done and more.left or count
    redis.call('HSET', data, at_next, string.format('%.0f', left + math.max(slack, math.floor((left - keep) / 4))))
  end
end
